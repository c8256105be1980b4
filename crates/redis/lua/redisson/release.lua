-- Releases a hold, and tells the waiters if the lock is free.
-- KEYS  1 lock  2 note  3 channel of plain locks  4 channel of read-write locks  5 fair queue  6 timer
-- ARGV  1 holder  2 what the names of timers begin with
-- Returns 1 if the claim held the lock, 0 if not, -1 if the name is not that of a lock.
-- Invariant: nothing of another holder is touched.
local call, STEM = redis.call, ARGV[2]

--@free

-- Something else may have the name by now.
local found = redis.pcall('HMGET', KEYS[1], ARGV[1], 'mode')
if found.err then return -1 end
if not found[1] then return 0 end
if found[2] ~= 'read' then
  free('1')
  return 1
end
local held = call('DEL', KEYS[6])
call('HDEL', KEYS[1], ARGV[1])
leave_read()
return held
