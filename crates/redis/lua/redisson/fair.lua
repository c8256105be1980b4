-- The queue of Redisson's fair lock. Composed into the scripts that name it.
-- Expects KEYS[3] the note of the lock, KEYS[5] the queue, KEYS[6] its time-outs, and KEYS[7] the channel of plain
-- locks, behind which each waiter of a fair lock has its own.
--
-- The time-outs are in milliseconds of the Java programs' clocks, which may be wrong by hours. So a time-out alone
-- does not say that a waiter is gone: while the lock is free, the note has the head of the queue, its time-out, and
-- when it counts as gone by the server's clock: 'fair <ms> <time-out> <head>'.

-- The ms for which the head of the queue may still take the free lock, or nil if none waits. A head is called once.
-- A live one takes the lock within milliseconds, whatever its clock says. It counts as gone when its time-out is
-- over and it has not come for 2 seconds, or 30 if the call was heard; and after Redisson's own 5 minutes, however
-- far ahead its clock is. Then it is removed, and the next one is called.
local function fair_ahead()
  local first = call('LINDEX', KEYS[5], '0')
  if not first then return nil end
  local time = call('TIME')
  local now = time[1] * 1000 + math.floor(time[2] / 1000)
  local ends = call('ZSCORE', KEYS[6], first) or '0'
  local gone_at, called = string.match(call('GET', KEYS[3]) or '', '^fair (%d+) (.*)$')
  if called == ends .. ' ' .. first and now >= tonumber(gone_at) then
    call('LPOP', KEYS[5])
    call('ZREM', KEYS[6], first)
    first = call('LINDEX', KEYS[5], '0')
    if not first then return nil end
    ends = call('ZSCORE', KEYS[6], first) or '0'
  end
  if called ~= ends .. ' ' .. first then
    local heard = call(PUBLISH, KEYS[7] .. ':' .. first, '0') > 0
    local left = math.max(tonumber(ends) - now, heard and 30000 or 2000)
    gone_at = string.format('%.0f', now + math.min(left, 300000))
    call('SET', KEYS[3], 'fair ' .. gone_at .. ' ' .. ends .. ' ' .. first, 'PX', '86400000')
  end
  return string.format('%.0f', math.max(1, tonumber(gone_at) - now))
end
