-- Adds a record to a lock's list of what operators did to it.
-- KEYS  A (list: audit records)
-- ARGV  1 audit record
-- Returns 1.
-- Invariant: the newest comes first; no more are kept than evictions keep.
redis.call('LPUSH', KEYS[1], ARGV[1])
redis.call('LTRIM', KEYS[1], '0', '999')
return 1
