-- Takes a lock from one holder by force, as Redisson's forceUnlock does from all, and records it.
-- KEYS  1 lock  2 note  3 channel of plain locks  4 channel of read-write locks  5 fair queue  6 token
--       7 audit records (list)
-- ARGV  1 field of the holder  2 what the names of timers begin with  3 audit record  4 'fenced' or ''
-- Returns 1 if the holder was there, 0 if not, -1 if the name is not that of a lock.
-- Invariant: no other holder is touched; the next token is above every earlier one.
local K, call, STEM = KEYS[1], redis.call, ARGV[2]

--@free
--@audit

local found = redis.pcall('HEXISTS', K, ARGV[1])
if ARGV[1] == 'mode' or found ~= 1 then return type(found) == 'table' and -1 or 0 end
local mode = call('HGET', K, 'mode')
if not mode and call('HLEN', K) ~= 1 then return 0 end
local count = tonumber(call('HGET', K, ARGV[1])) or 1
call('HDEL', K, ARGV[1])
if mode == 'write' and call('HLEN', K) > 1 then
  -- A writer of Redisson that reads, too, goes on as a reader.
  if string.find(ARGV[1], ':write$') then call('HSET', K, 'mode', 'read') end
  call(PUBLISH, KEYS[4], '1')
elseif mode == 'read' then
  for n = 1, math.min(count, 64) do
    call('DEL', STEM .. ARGV[1] .. ':rwlock_timeout:' .. string.format('%.0f', n))
  end
  leave_read()
else
  free('1')
end
if ARGV[4] ~= '' then call('INCR', KEYS[6]) end
add_audit_record(KEYS[7], ARGV[3])
return 1
