-- Restarts a holder's term.
-- KEYS  K, P, E
-- ARGV  1 owner  2 ttl ms
-- Returns 1 if the owner holds, 0 if not.
-- Invariant: the term of no other holder becomes shorter.
local K, P, E = KEYS[1], KEYS[2], KEYS[3]
local value = redis.call('GET', K)
if not value then return 0 end
if string.sub(value, 1, 32) == ARGV[1] then
  return redis.call('PEXPIRE', K, ARGV[2])
end
if string.sub(value, 1, 5) ~= 'pool ' then return 0 end
local ends = redis.call('ZSCORE', E, ARGV[1])
if not ends or redis.call('HEXISTS', P, ARGV[1]) == 0 then return 0 end
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
if tonumber(ends) <= now then return 0 end
local ttl, left = tonumber(ARGV[2]), redis.call('PTTL', K)
-- First the command that a server out of memory still carries out; then it carries out the rest, too.
redis.call('PEXPIRE', K, string.format('%.0f', math.max(left, ttl)))
redis.call('ZADD', E, string.format('%.0f', now + ttl), ARGV[1])
if left < ttl then
  redis.call('PEXPIRE', P, ARGV[2])
  redis.call('PEXPIRE', E, ARGV[2])
end
return 1
