-- What the scripts of the Redisson dialect share. Composed into those that name it.
-- Expects the local K, and `call` for redis.call.

-- Whether a field of a lock's hash can be a holder: '<36 characters>:<thread>', a writer's with ':write'.
local function is_holder(field)
  local instance, rest = string.sub(field, 1, 36), string.sub(field, 37)
  return string.find(instance, '^[%x-]+$') and #instance == 36
    and (string.find(rest, '^:%d+$') or string.find(rest, '^:%d+:write$'))
end

-- What is under the lock's name: 'none', 'lock' (a plain, fair, fenced or spin lock), 'read', 'write', or nil
-- for something that is no lock. Looks at a few fields, whatever the number of readers.
local function shape()
  local kind = call('TYPE', K).ok
  if kind ~= 'hash' then return kind == 'none' and 'none' or nil end
  local mode = call('HGET', K, 'mode')
  if mode then return (mode == 'read' or mode == 'write') and mode or nil end
  if call('HLEN', K) ~= 1 then return nil end
  return is_holder(call('HKEYS', K)[1]) and 'lock' or nil
end
