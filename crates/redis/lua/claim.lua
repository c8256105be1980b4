-- Asks for a lock.
-- KEYS  K, Q, W, P, E, T
-- ARGV  1 owner  2 kind (x, s, p)  3 take  4 of  5 ttl ms  6 patience ms, 0 = do not queue
--       7 inbox channel, - = none  8 pid  9 host  10 label  11 fenced (1, 0)
-- Returns 'granted <token> <server time us>' | 'queued <ms until the obstacle ends or -1> <us>'
--         | 'busy'
local K, Q, W, P, E, T = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local owner, fenced = ARGV[1], ARGV[11] == '1'

-- Free, and nobody waits: nothing is touched that is not needed.
if ARGV[2] == 'x' and redis.call('EXISTS', K, Q) == 0 then
  local t = redis.call('TIME')
  local us = t[1] * 1000000 + t[2]
  local ms = math.floor(us / 1000)
  local token = '-'
  if fenced then
    token = ms * 1024
    local last = tonumber(redis.call('GET', T) or '0')
    if last >= token then token = last + 1 end
    token = string.format('%.0f', token)
    redis.call('SET', T, token)
  end
  redis.call('SET', K, table.concat({owner, token, string.format('%.0f', ms), ARGV[8], ARGV[9], ARGV[10]}, ' '), 'PX', ARGV[5])
  return 'granted ' .. token .. string.format(' %.0f', us)
end

--@engine

local us = number(tonumber(time[1]) * 1000000 + tonumber(time[2]))
local ttl, patience = tonumber(ARGV[5]), tonumber(ARGV[6])

-- Held already: a repeated call. The term starts anew.
local token, _, kind = held(owner)
if token then
  if kind == 'x' then
    redis.call('PEXPIRE', K, ARGV[5])
  else
    -- First what a server out of memory still does; after it, it does the rest, too.
    redis.call('PEXPIRE', K, number(math.max(redis.call('PTTL', K), ttl)))
    redis.call('ZADD', E, number(now + ttl), owner)
    keep(P, ttl) keep(E, ttl)
  end
  return 'granted ' .. token .. ' ' .. us
end

local record = redis.call('HGET', W, owner)
local arrived, seat = number(now), true
if record then
  record = words(record, 10)
  arrived = record[2]
  -- Should the line have been lost, by an eviction or by hand, it joins again.
  seat = redis.call('EXISTS', Q) == 0
end
local lease = patience > 0 and patience or 1000
redis.call('HSET', W, owner, table.concat({number(now + lease), arrived, ARGV[2], ARGV[3], ARGV[4],
  ARGV[5], ARGV[7], ARGV[8], ARGV[9], ARGV[10]}, ' '))
if seat then redis.call('RPUSH', Q, owner) end
mark()
keep(W, lease) keep(Q, lease)

admit(owner)

token = held(owner)
if token then return 'granted ' .. token .. ' ' .. us end

if patience == 0 then
  redis.call('HDEL', W, owner)
  if redis.call('LINDEX', Q, -1) == owner then redis.call('RPOP', Q) end
  return 'busy'
end
local again = redis.call('LINDEX', Q, 0) == owner and obstacle() or -1
return 'queued ' .. number(again) .. ' ' .. us
