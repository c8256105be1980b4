-- Asks for a lock.
-- KEYS  K, Q, W, P, E, T
-- ARGV  1 owner  2 kind: 'x 0 0', 's <take> 0' or 'p <take> <of>'  3 ttl ms
--       4 '<pid> <host> <label>'; and, to queue:  5 patience ms  6 inbox channel
-- Returns 'granted <token>' | 'queued <ms until the obstacle ends or -1> <server time us>' | 'busy'
local K, Q, W, P, E, T = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local owner, kind = ARGV[1], ARGV[2]

--@mint
--@engine

local us = number(tonumber(time[1]) * 1000000 + tonumber(time[2]))
local ttl, patience = tonumber(ARGV[3]), tonumber(ARGV[5] or '0')

-- Held already: a repeated call. The term starts anew.
local token, _, as = held(owner)
if token then
  if as == 'x' then
    redis.call('PEXPIRE', K, ARGV[3])
  else
    -- First what a server out of memory still does; after it, it does the rest, too.
    redis.call('PEXPIRE', K, number(math.max(redis.call('PTTL', K), ttl)))
    redis.call('ZADD', E, number(now + ttl), owner)
    keep(P, ttl) keep(E, ttl)
  end
  return 'granted ' .. token
end

-- Should the line have been lost, by an eviction or by hand, everybody joins anew.
local record = false
if redis.call('EXISTS', Q) == 1 then
  record = redis.call('HGET', W, owner)
elseif redis.call('HLEN', W) > 0 then
  redis.call('DEL', W)
end
local arrived, seat = number(now), true
if record and tonumber(words(record, 2)[1]) <= now then
  -- Its place has ended: this is a new claim.
  redis.call('LREM', Q, '0', owner)
elseif record then
  arrived, seat = words(record, 3)[2], false
end
local lease = patience > 0 and patience or 1000
redis.call('HSET', W, owner, table.concat({number(now + lease), arrived, kind, ARGV[3],
  ARGV[6] or '-', ARGV[4]}, ' '))
if seat then redis.call('RPUSH', Q, owner) end
mark()
keep(W, lease) keep(Q, lease)

admit(owner)

token = held(owner)
if token then return 'granted ' .. token end

if patience == 0 then
  redis.call('HDEL', W, owner)
  if redis.call('LINDEX', Q, '-1') == owner then redis.call('RPOP', Q) end
  return 'busy'
end
local again = redis.call('LINDEX', Q, '0') == owner and obstacle() or -1
return 'queued ' .. number(again) .. ' ' .. us
