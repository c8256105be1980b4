-- Replaces the value of a cell, if it has the expected version.
-- KEYS  the cell: the version, 16 hexadecimal digits, and the value
-- ARGV  1 expected version, '' for a cell that must be absent  2 new version  3 value
--       4 'never' | 'keep' | milliseconds until it expires
-- Returns 1 | the cell as it is, which is another | nil, as it is absent
local call = redis.call
local stored = call('GET', KEYS[1])
if string.sub(stored or '', 1, 16) ~= ARGV[1] then return stored end
local new, expiry = ARGV[2] .. ARGV[3], ARGV[4]
if expiry == 'never' then
  call('SET', KEYS[1], new)
elseif expiry == 'keep' then
  call('SET', KEYS[1], new, 'KEEPTTL')
else
  call('SET', KEYS[1], new, 'PX', expiry)
end
return 1
