-- The queue of one server: the first waiter gets the lock. Part of engine.lua.

-- On which of these claims' channels a client listens here. The reply of PUBLISH is not enough: the message
-- also goes to clients that listen at a replica, and those are not counted.
local function listened(claims)
  local channels, known = {}, {['-'] = true}
  for _, one in ipairs(claims) do
    local channel = one.w[7]
    if not known[channel] then
      known[channel] = true
      channels[#channels + 1] = channel
    end
  end
  local listens = {}
  if #channels == 0 then return listens end
  local count = PUBLISH == 'SPUBLISH' and 'SHARDNUMSUB' or 'NUMSUB'
  local counts = call('PUBSUB', count, unpack(channels))
  for i = 1, #counts, 2 do listens[counts[i]] = counts[i + 1] > 0 end
  return listens
end

-- Grants, and notifies the client of each claim except `me`, which learns it from the reply.
local function let_in(claims, me)
  local listens = listened(claims)
  for _, one in ipairs(claims) do
    one.term = tonumber(one.w[6])
    if one.owner ~= me and not listens[one.w[7]] then
      -- The client is dead, or reconnects and will ask before its place would have expired. Until it
      -- does, the grant lasts no longer than the place would have. It is not published: a client that
      -- receives a grant relies on its whole term.
      one.term = math.min(tonumber(one.w[1]) - now, one.term)
    end
  end
  grant(claims)
  for _, one in ipairs(claims) do
    if one.owner ~= me and listens[one.w[7]] then
      call(PUBLISH, one.w[7], one.owner .. ' ' .. one.token .. ' ' .. number(now))
    end
  end
end

-- From the head of the queue on: the owners to remove from it, the claims of them to admit, and whether
-- the next waiter, if any, has to wait.
local function choose(owners)
  local kind, taken = room()
  local out, claims = {}, {}
  for i, record in ipairs(call('HMGET', W, unpack(owners))) do
    local w = record and words(record, 10)
    if w and tonumber(w[1]) > now then
      if not admits(kind, taken, w) then return out, claims, true end
      claims[#claims + 1] = {owner = owners[i], w = w}
      kind, taken = w[3], taken + tonumber(w[4])
    end
    out[#out + 1] = owners[i]
  end
  return out, claims, kind == 'x'
end

-- Admits waiters from the head of the queue while there is room. True if there is more to do.
local function admit(me)
  local more = drop_ended()
  -- Most often only the first may be admitted, or none.
  local size, seen, admitted = 1, 0, 0
  while room() ~= 'x' do
    local owners = call('ZRANGE', Q, '0', number(size - 1))
    if #owners == 0 then break end
    local out, claims, blocked = choose(owners)
    drop(out)
    if #claims > 0 then let_in(claims, me) end
    if blocked or #owners < size then break end
    size, seen, admitted = BATCH, seen + #owners, admitted + #claims
    if seen >= 3 * BATCH or admitted >= BATCH then return true end
  end
  return more
end

-- There is more to do than this call did. The client of the last waiter goes on (with refresh.lua): it has
-- a claim that waits until everything is done. If it is dead, other clients go on when they poll.
local function hand_on()
  for _, place in ipairs({'-1', '0'}) do
    local owner = call('ZRANGE', Q, place, place)[1]
    local record = owner and call('HGET', W, owner)
    local w = record and words(record, 10)
    if w and listened({{w = w}})[w[7]] then
      call(PUBLISH, w[7], owner .. ' more')
      return
    end
  end
end
