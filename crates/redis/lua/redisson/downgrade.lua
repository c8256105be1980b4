-- Turns the hold of a writer into that of a reader.
-- KEYS  1 lock  2 note  3 timer  4 channel of read-write locks
-- ARGV  1 holder  2 ttl ms
-- Returns the token of the hold, or 0 if the claim does not hold.
-- Invariant: the hash exists all the time, so no other writer holds in between. A repeated call restarts the
-- term of the reader, and changes nothing else.
local K, call = KEYS[1], redis.call
if redis.pcall('HEXISTS', K, ARGV[1]) ~= 1 then return 0 end
local kept
if call('HGET', K, 'mode') == 'read' then
  kept = call('GET', KEYS[3])
  if not kept then return 0 end
  call('PEXPIRE', KEYS[3], ARGV[2])
  if call('PTTL', K) < tonumber(ARGV[2]) then call('PEXPIRE', K, ARGV[2]) end
else
  kept = call('GET', KEYS[2]) or (ARGV[1] .. ' - 0 - - ')
  call('HSET', K, 'mode', 'read')
  call('PEXPIRE', K, ARGV[2])
  call('SET', KEYS[3], kept, 'PX', ARGV[2])
  call('DEL', KEYS[2])
  call(PUBLISH, KEYS[4], '1')
end
return string.match(kept, '^%S+ (%S+)')
