-- Sets a key, behind gate.lua.
-- KEYS  2 the key
-- ARGV  2 the value
-- Returns 'written'
redis.call('SET', KEYS[2], ARGV[2])
return 'written'
