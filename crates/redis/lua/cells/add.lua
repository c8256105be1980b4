-- Adds to a counter, once for each id.
-- KEYS  the cell: the version, 16 hexadecimal digits; 'T', 1, flags, the number of ids; the ids of the
--       requests that changed it last, newest first, eight bytes each; decimal digits
-- ARGV  1 new version  2 id, eight bytes  3 what to add  4 lowest result  5 highest result
--       6 milliseconds until it expires, if this creates it; '' for never
--       7 'repeated' if this id was sent before  8 the id of a change before that, or ''
-- Returns 'done <value>' | 'range <value>', unchanged | 'forgotten', unchanged | 'damaged'
-- Invariant: an id that was sent before is not counted again, also if its change is not remembered any more.
-- All numbers are below 2^53, which a double counts exactly.
local call = redis.call
local stored = call('GET', KEYS[1])
local ids, value, remembered = '', 0, true
if stored then
  local mark, format, flags, count = string.byte(stored, 17, 20)
  if mark ~= 84 or format ~= 1 or flags > 1 or not count or count > 16 then return 'damaged' end
  ids = string.sub(stored, 21, 20 + count * 8)
  if flags == 0 then value = tonumber(string.sub(stored, 21 + count * 8)) end
  if not value then return 'damaged' end
  -- A list that is not full has all changes.
  remembered = #ids < 128
  for at = 1, #ids, 8 do
    local id = string.sub(ids, at, at + 7)
    if id == ARGV[2] then return string.format('done %.0f', value) end
    remembered = remembered or id == ARGV[8]
  end
end
if ARGV[7] ~= '' and not remembered then return 'forgotten' end
local new = value + ARGV[3]
if new < tonumber(ARGV[4]) or new > tonumber(ARGV[5]) then
  return string.format('range %.0f', value)
end
ids = string.sub(ARGV[2] .. ids, 1, 128)
local head = ARGV[1] .. 'T\1\0' .. string.char(#ids / 8)
local cell = head .. ids .. string.format('%.0f', new)
if stored then
  call('SET', KEYS[1], cell, 'KEEPTTL')
elseif ARGV[6] == '' then
  call('SET', KEYS[1], cell)
else
  call('SET', KEYS[1], cell, 'PX', ARGV[6])
end
return string.format('done %.0f', new)
