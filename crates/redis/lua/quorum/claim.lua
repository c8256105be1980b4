-- Asks a node of a quorum for its vote.
-- KEYS  K, Q, W, P, E, T
-- ARGV  1 owner  2 kind: 'x 0 0' or 's 1 0'  3 ttl ms  4 '<pid> <host> <label>'  5 floor of the
--       counter; and, to wait:  6 patience ms  7 inbox channel
-- Returns 'granted <counter> <server time us>' | 'held <ms until the obstacle ends or -1> <us>'
local K, Q, T, call = KEYS[1], KEYS[2], KEYS[6], redis.call
local owner, kind = ARGV[1], string.sub(ARGV[2], 1, 1)

--@mint

-- Free, and nobody waits: nothing is touched that is not needed.
if kind == 'x' and call('EXISTS', K, Q) == 0 then
  local t = call('TIME')
  local us = t[1] * 1000000 + t[2]
  local ms = (us - t[2] % 1000) / 1000
  local token = mint(ms, tonumber(ARGV[5]))
  call('SET', K, owner .. ' ' .. token .. string.format(' %.0f ', ms) .. ARGV[4], 'PX', ARGV[3])
  return 'granted ' .. token .. string.format(' %.0f', us)
end

local W, P, E = KEYS[3], KEYS[4], KEYS[5]

--@engine

local us = number(tonumber(time[1]) * 1000000 + tonumber(time[2]))
local ttl, patience = tonumber(ARGV[3]), tonumber(ARGV[6] or '0')

-- Held already: a repeated call. The term starts anew.
local token, _, as = held(owner)
if token then
  if as == 'x' then
    call('PEXPIRE', K, ARGV[3])
  else
    -- First what a server out of memory still does; after it, it does the rest, too.
    call('PEXPIRE', K, number(math.max(call('PTTL', K), ttl)))
    call('ZADD', E, number(now + ttl), owner)
    keep(P, ttl) keep(E, ttl)
  end
  return 'granted ' .. token .. ' ' .. us
end

drop_ended()
local record = call('HGET', W, owner)
local arrived, seat = number(now), true
if record and tonumber(words(record, 2)[1]) <= now then
  -- Its place has ended: this is a new claim.
  call('LREM', Q, '0', owner)
elseif record then
  arrived = words(record, 3)[2]
  seat = call('EXISTS', Q) == 0
end
record = table.concat({number(now + patience), arrived, ARGV[2], ARGV[3], ARGV[7] or '-', ARGV[4]}, ' ')
local w = words(record, 10)

local _, ahead = head()
-- Readers would keep a writer out for ever.
local overtakes = kind == 's' and ahead and ahead[3] == 'x'
local holders, taken = room()
if admits(holders, taken, w) and not overtakes then
  return 'granted ' .. grant(owner, w, tonumber(ARGV[5])) .. ' ' .. us
end

if patience > 0 then
  call('HSET', W, owner, record)
  if seat then call('RPUSH', Q, owner) end
  mark()
  keep(W, patience) keep(Q, patience)
end
return 'held ' .. number(obstacle()) .. ' ' .. us
