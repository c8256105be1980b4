-- Restarts a holder's term.
-- KEYS  1 lock  2 note  3 timer
-- ARGV  1 holder  2 ttl ms
-- Returns 1 if the claim holds, 0 if not.
-- Invariant: the term of no other holder becomes shorter. A reader without its timer does not hold.
local K, ttl = KEYS[1], ARGV[2]
local held = redis.pcall('HEXISTS', K, ARGV[1])
-- Something else may have the name by now.
if held ~= 1 then return 0 end
if redis.call('HGET', K, 'mode') == 'read' then
  if redis.call('PEXPIRE', KEYS[3], ttl) == 0 then return 0 end
  if redis.call('PTTL', K) < tonumber(ttl) then redis.call('PEXPIRE', K, ttl) end
else
  redis.call('PEXPIRE', K, ttl)
  redis.call('PEXPIRE', KEYS[2], ttl)
end
return 1
