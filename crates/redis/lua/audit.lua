-- Adds an audit record to those of a lock, newest first. Composed into every script that writes one.
-- Invariant: at most 1,000 records of a lock are kept, and none for longer than 30 days after the newest.
local function add_audit_record(list, record)
  redis.call('LPUSH', list, record)
  redis.call('LTRIM', list, '0', '999')
  redis.call('PEXPIRE', list, '2592000000')
end
