-- Shows a lock, a page of its holders at a time.
-- KEYS  1 lock  2 note of an exclusive holder
-- ARGV  1 cursor: '0' at first  2 what the names of timers begin with
-- Returns {server ms, 'none' | 'lock' | 'read' | 'write' | 'foreign', ms until the lock ends, the note or nil,
--          the next cursor, '0' at the end, {field, count, ms until the reader's term ends, the value of its
--          timer, ...}}
-- Invariant: reads only. A page has about 128 holders, or all of a lock with few.
local K, call, STEM = KEYS[1], redis.call, ARGV[2]

--@layout

local time = call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
local found = shape() or 'foreign'
if found == 'none' or found == 'foreign' then return {now, found, -2, false, '0', {}} end
local page = call('HSCAN', K, ARGV[1], 'COUNT', '128')
local holders = {}
for i = 1, #page[2], 2 do
  local field, count = page[2][i], page[2][i + 1]
  if field ~= 'mode' then
    local left, value = -2, false
    if found == 'read' or found == 'write' then
      local last = tonumber(count) or 1
      for n = last, math.max(1, last - 7), -1 do
        local timer = STEM .. field .. ':rwlock_timeout:' .. string.format('%.0f', n)
        local ms = call('PTTL', timer)
        if ms > left then left, value = ms, call('GET', timer) end
      end
    end
    local at = #holders
    holders[at + 1], holders[at + 2], holders[at + 3], holders[at + 4] = field, count, left, value or ''
  end
end
return {now, found, call('PTTL', K), call('GET', KEYS[2]), page[1], holders}
