-- Shows the holders of a semaphore's permits, a page at a time.
-- KEYS  1 counter  2 terms  3 channel
-- ARGV  1 cursor: '0' at first  2 what the names of notes begin with
-- Returns nil if the name is that of something else, else {server ms, the number of permits, the next cursor,
--         '0' at the end, {member, ms until its term ends, its note or '', ...}}
-- Invariant: reads only.
--@pool

local is_pool, free = pool()
if not is_pool then return nil end
local size = text(math.max(0, (free or 0) + call('ZCARD', TERMS)))
local now, page, holders = server_ms(), call('ZSCAN', TERMS, ARGV[1], 'COUNT', '128'), {}
for at = 1, #page[2], 2 do
  local member, left = page[2][at], tonumber(page[2][at + 1]) - now
  if left > 0 then
    local owner, note = string.match(member, '^(%x+) %d%d%d%d$'), ''
    if owner and #owner == 32 then note = call('GET', ARGV[2] .. owner) or '' end
    local last = #holders
    holders[last + 1], holders[last + 2], holders[last + 3] = member, text(left), note
  end
end
return {text(now), size, page[1], holders}
