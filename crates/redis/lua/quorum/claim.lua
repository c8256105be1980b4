-- Asks a node of a quorum for its vote, and queues the claim if it has to wait.
-- KEYS  K, Q, W, P, E, T
-- ARGV  1 owner  2 kind: 'x 0 0' or 's 1 0'  3 ttl ms  4 '<pid> <host> <label>'  5 floor of the
--       counter; and, to wait:  6 ms that the place lasts  7 inbox channel
-- Returns 'granted <counter> <server time us>' | 'held <ms until the obstacle ends or -1> <us>'
-- Invariant: a vote is above every counter that the node has returned before, and not below the floor.
local K, Q, T, call = KEYS[1], KEYS[2], KEYS[6], redis.call
local owner, kind = ARGV[1], string.sub(ARGV[2], 1, 1)

--@mint

-- Free, and no claim waits: as few commands as possible.
if kind == 'x' and call('EXISTS', K, Q) == 0 then
  local t = call('TIME')
  local us = t[1] * 1000000 + t[2]
  local ms = (us - t[2] % 1000) / 1000
  local token = mint(ms, tonumber(ARGV[5]))
  call('SET', K, owner .. ' ' .. token .. string.format(' %.0f ', ms) .. ARGV[4], 'PX', ARGV[3])
  return 'granted ' .. token .. string.format(' %.0f', us)
end

local W, P, E = KEYS[3], KEYS[4], KEYS[5]
local value = call('GET', K)

--@engine

local ttl, place_ms = tonumber(ARGV[3]), tonumber(ARGV[6] or '0')

-- The owner holds already: a repeated call. The term restarts.
local token, as = held(owner)
if token then
  extend(owner, as, ttl)
  return 'granted ' .. token .. ' ' .. us
end

drop_ended(owner)
local record = {number(now + place_ms), number(now), ARGV[2], ARGV[3], ARGV[7] or '-', ARGV[4]}
local before = call('HGET', W, owner)
before = before and words(before, 3)
-- A claim whose place has expired, or was lost, joins again.
local position = before and tonumber(before[1]) > now and call('ZSCORE', Q, owner)
if position then record[2] = before[2] end
record = table.concat(record, ' ')
local w = words(record, 10)

local _, ahead = head()
-- Otherwise readers would starve a writer.
local overtakes = kind == 's' and ahead and ahead[3] == 'x'
local holders, taken = room()
if admits(holders, taken, w) and not overtakes then
  local one = {owner = owner, w = w, term = ttl}
  grant({one}, tonumber(ARGV[5]))
  return 'granted ' .. one.token .. ' ' .. us
end

if place_ms > 0 then
  call('HSET', W, owner, record)
  if not position then join(owner, tail()) end
  mark()
  keep_line(place_ms)
end
return 'held ' .. number(obstacle()) .. ' ' .. us
