-- Asks a node of a quorum for its vote.
-- KEYS  K, Q, W, P, E, T
-- ARGV  1 owner  2 kind (x, s)  3 ttl ms  4 floor of the counter  5 patience ms, 0 = do not wait
--       6 inbox channel  7 pid  8 host  9 label
-- Returns 'granted <counter> <server time us>' | 'held <ms until the obstacle ends or -1> <us>'
local K, Q, W, P, E, T = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local owner = ARGV[1]

-- Free: whoever waits has been told, and asks as this one does.
if ARGV[2] == 'x' and redis.call('EXISTS', K) == 0 then
  local t = redis.call('TIME')
  local us = t[1] * 1000000 + t[2]
  local ms = math.floor(us / 1000)
  local last = tonumber(redis.call('GET', T) or '0')
  local token = string.format('%.0f', math.max(last + 1, ms * 1024, tonumber(ARGV[4])))
  redis.call('SET', T, token)
  local mark = redis.call('EXISTS', Q) == 1 and '!' or ' '
  local value = table.concat({token, string.format('%.0f', ms), ARGV[7], ARGV[8], ARGV[9]}, ' ')
  redis.call('SET', K, owner .. mark .. value, 'PX', ARGV[3])
  return 'granted ' .. token .. string.format(' %.0f', us)
end

--@engine

local us = number(tonumber(time[1]) * 1000000 + tonumber(time[2]))
local ttl, patience = tonumber(ARGV[3]), tonumber(ARGV[5])

-- Held already: a repeated call. The term starts anew.
local token, _, kind = held(owner)
if token then
  if kind == 'x' then
    redis.call('PEXPIRE', K, ARGV[3])
  else
    redis.call('PEXPIRE', K, number(math.max(redis.call('PTTL', K), ttl)))
    redis.call('ZADD', E, number(now + ttl), owner)
    keep(P, ttl) keep(E, ttl)
  end
  return 'granted ' .. token .. ' ' .. us
end

drop_ended()
local w = {number(now + patience), number(now), ARGV[2], '1', '0', ARGV[3], ARGV[6], ARGV[7],
  ARGV[8], ARGV[9]}
local kind, taken = room()
local first, ahead = head()
-- Readers would keep a writer out for ever.
local overtakes = ARGV[2] == 's' and ahead and ahead[3] == 'x'
if admits(kind, taken, w) and not overtakes then
  return 'granted ' .. grant(owner, w, tonumber(ARGV[4])) .. ' ' .. us
end

if patience > 0 then
  local seat, record = true, redis.call('HGET', W, owner)
  if record then
    w[2] = words(record, 10)[2]
    seat = redis.call('EXISTS', Q) == 0
  end
  redis.call('HSET', W, owner, table.concat(w, ' '))
  if seat then redis.call('RPUSH', Q, owner) end
  mark()
  keep(W, patience) keep(Q, patience)
end
return 'held ' .. number(obstacle()) .. ' ' .. us
