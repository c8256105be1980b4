-- Takes a lock that is free and has no waiters, with as few commands as possible.
-- KEYS  K, Q, T
-- ARGV  1 owner  2 ttl ms  3 '<pid> <host> <label>'
-- Returns 'granted <token>' | 'held' by another claim | 'ask': claim.lua has to decide
-- Invariant: nothing is written unless neither a holder nor a queue exists.
local K, T, call = KEYS[1], KEYS[3], redis.call

--@mint

if call('EXISTS', K, KEYS[2]) == 0 then
  local t = call('TIME')
  local token = mint(t[1] * 1000 + (t[2] - t[2] % 1000) / 1000)
  call('SET', K, ARGV[1] .. ' ' .. token .. ' - ' .. ARGV[3], 'PX', ARGV[2])
  return 'granted ' .. token
end
local value = call('GET', K)
local start = value and string.sub(value, 1, 32)
if not value or start == ARGV[1] or string.sub(value, 1, 5) == 'pool ' then return 'ask' end
return 'held'
