-- Takes locks that are free and have no waiters, all or none, with as few commands as possible.
-- KEYS  T; and of each lock: K, Q
-- ARGV  of each lock: 1 owner  2 ttl ms  3 '<pid> <host> <label>'
-- Returns 'granted <token>', which is the token of all | 'held', one lock, by another claim | 'ask': claim.lua has
-- to decide, lock by lock
-- Invariant: nothing is written unless neither a holder nor a queue exists.
local T, call = KEYS[1], redis.call

--@mint

if call('EXISTS', unpack(KEYS, 2)) == 0 then
  local t = call('TIME')
  local token = mint(t[1] * 1000 + (t[2] - t[2] % 1000) / 1000)
  local at = 1
  for i = 2, #KEYS, 2 do
    call('SET', KEYS[i], ARGV[at] .. ' ' .. token .. ' - ' .. ARGV[at + 2], 'PX', ARGV[at + 1])
    at = at + 3
  end
  return 'granted ' .. token
end
local value = call('GET', KEYS[2])
local start = value and string.sub(value, 1, 32)
if #KEYS > 3 or not value or start == ARGV[1] or string.sub(value, 1, 5) == 'pool ' then return 'ask' end
return 'held'
