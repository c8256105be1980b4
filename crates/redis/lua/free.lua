-- Releases locks that no claim waits for, all or none.
-- KEYS  K of each lock
-- ARGV  owner of each lock
-- Returns 1, or 0: release.lua has to decide, lock by lock
-- Invariant: nothing is removed that the owner does not hold.
for i, key in ipairs(KEYS) do
  -- A key of another type is an error of its own release alone.
  local value = redis.pcall('GET', key)
  if type(value) ~= 'string' or string.sub(value, 1, 32) ~= ARGV[i] or string.sub(value, 33, 33) == '!' then return 0 end
end
redis.call('DEL', unpack(KEYS))
return 1
