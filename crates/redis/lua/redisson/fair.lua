-- The queue of Redisson's fair lock. Composed into the scripts that name it.
-- Expects KEYS[5] and KEYS[6]: the queue and its time-outs, which are in the clients' milliseconds; here the
-- server's clock counts.

-- The ms for which a waiter of a fair lock may still come and take the lock, or nil if none waits. Removes up
-- to 64 waiters whose time is over, as Redisson does.
local function fair_ahead()
  if call('EXISTS', KEYS[5]) == 0 then return nil end
  local time = call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  for _ = 1, 64 do
    local first = call('LINDEX', KEYS[5], '0')
    if not first then return nil end
    if first == ARGV[1] then
      call('LPOP', KEYS[5])
      call('ZREM', KEYS[6], first)
      return nil
    end
    local ends = call('ZSCORE', KEYS[6], first)
    if not ends or tonumber(ends) > now then
      return string.format('%.0f', ends and math.max(1, tonumber(ends) - now) or 1000)
    end
    call('ZREM', KEYS[6], first)
    call('LPOP', KEYS[5])
  end
  return '1'
end
