-- How a hold ends. Composed into the scripts that name it.
-- Expects KEYS[1] to KEYS[5]: lock, note, channel of plain locks, channel of read-write locks, fair queue; and
-- the local STEM: what the names of timers begin with.

-- The lock is free: deletes it, and tells waiters of all kinds. Each instance wakes one, and all readers if a
-- writer has left.
local function free(all)
  call('DEL', KEYS[1], KEYS[2])
  call(PUBLISH, KEYS[3], '0')
  call(PUBLISH, KEYS[4], all)
  -- Those of a fair lock have a channel each.
  local first = redis.pcall('LINDEX', KEYS[5], '0')
  if type(first) == 'string' then call(PUBLISH, KEYS[3] .. ':' .. first, '0') end
end

-- A reader has left: frees the lock unless others hold it. The term of the lock becomes the longest of theirs,
-- as with Redisson, unless they are too many to look at.
local function leave_read()
  local fields = call('HLEN', KEYS[1])
  if fields > 129 then return end
  local longest = -1
  if fields > 1 then
    local all = call('HGETALL', KEYS[1])
    for i = 1, #all, 2 do
      local count = all[i] ~= 'mode' and tonumber(all[i + 1]) or 0
      for n = count, math.max(1, count - 7), -1 do
        local timer = STEM .. all[i] .. ':rwlock_timeout:' .. string.format('%.0f', n)
        longest = math.max(longest, call('PTTL', timer))
      end
    end
  end
  if longest > 0 then
    call('PEXPIRE', KEYS[1], string.format('%.0f', longest))
  else
    free('0')
  end
end
