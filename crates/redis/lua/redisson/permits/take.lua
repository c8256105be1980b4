-- Claims permits of a semaphore in the layout of Redisson.
-- KEYS  1 counter  2 terms  3 channel  4 token (string)  5 note of the claim (string)  6 channel of latches
-- ARGV  1 owner  2 ttl ms  3 how many permits  4 of how many  5 '<pid> <host> <label>'  6 'fenced' or ''
-- Returns 'granted <token>' | 'busy <ms until the first term ends, or -1> semaphore'
--         | 'more': call again, as more terms have ended than one call removes
--         | 'foreign': something else has the semaphore's name
--         | 'latch': Java programs wait until the number is 0
-- Invariants: free permits and held ones are together what they were. A semaphore without a size gets that of
-- the claim, as trySetPermits would set it, less the permits that are held.
--@pool

local owner, wanted, size = ARGV[1], tonumber(ARGV[3]), tonumber(ARGV[4])
local is_pool, free = pool()
if not is_pool then return 'foreign' end
local now = server_ms()
local ttl = tonumber(ARGV[2])
local note = call('GET', KEYS[5])
if note and holds(owner, wanted, now) then
  set_terms(owner, wanted, now, ttl)
  call('PEXPIRE', KEYS[5], ARGV[2])
  return 'granted ' .. string.match(note, '^%S+ (%S+)')
end
-- A latch is a number, too.
local count = PUBLISH == 'SPUBLISH' and 'SHARDNUMSUB' or 'NUMSUB'
if free and call('PUBSUB', count, KEYS[6])[2] > 0 then return 'latch' end
-- What is left of a hold that has ended.
give_back(take_out(owner))
local more = collect(now)
if not free then
  local left = text(math.max(0, size - call('ZCARD', TERMS)))
  call('SET', COUNTER, left)
  call(PUBLISH, CHANNEL, left)
end
free = tonumber(call('GET', COUNTER))
if free >= wanted and call('ZCARD', TERMS) + wanted <= size then
  local token = ARGV[6] == '' and '-' or text(call('INCR', KEYS[4]))
  call('DECRBY', COUNTER, ARGV[3])
  set_terms(owner, wanted, now, ttl)
  call('SET', KEYS[5], owner .. ' ' .. token .. ' ' .. text(now) .. ' ' .. ARGV[5], 'PX', ARGV[2])
  return 'granted ' .. token
end
if more then return 'more' end
local first = call('ZRANGE', TERMS, '0', '0', 'WITHSCORES')
local left = first[2] and text(math.max(1, tonumber(first[2]) - now)) or '-1'
return 'busy ' .. left .. ' semaphore'
