-- Gives up a claim, whether it holds or waits, and hands the lock to the next in line.
-- KEYS  K, Q, W, P, E, T
-- ARGV  1 owner  2 'stay': keep its place in line (only on a quorum)
-- Returns 1 if the owner held the lock, 0 if not.
local K, Q, W, P, E, T = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local owner = ARGV[1]

-- Mine, and nobody waits.
local value = redis.call('GET', K)
local mine = value and string.sub(value, 1, 32) == owner
if mine and string.sub(value, 33, 33) == ' ' then
  redis.call('DEL', K)
  return 1
end

--@mint
--@engine

local released = 0
if mine then
  redis.call('DEL', K)
  released = 1
elseif held(owner) then
  leave_pool(owner)
  released = 1
else
  leave_pool(owner)
end
if ARGV[2] ~= 'stay' and redis.call('HDEL', W, owner) == 1 then sweep() end
admit(ARGV[2] == 'stay' and owner or nil)
return released
