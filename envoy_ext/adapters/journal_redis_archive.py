"""What a Redis journal has kept, and how it goes: the scripts of `ports.Archive`."""

from typing import Final

from envoy_ext.adapters.journal_redis_scripts import build_script

FORGET: Final = build_script(
    "forget",
    """
local before, limit, by = unpack(ARGV, 2)
local last = call('HGET', journal, 'forgot')
local same, count = string.match(last or '', '^(%S+) (%d+)$')
if same == by then return tonumber(count) end
call('ZCARD', begun); call('ZCARD', created); call('HLEN', keys); call('HLEN', uses)
local found = call('ZRANGE', ended_at, '-inf', '(' .. before, 'BYSCORE', 'LIMIT', 0, limit)
local function unlink_from_key(id, digest, older, newer)
  if newer then
    if older then call('HSET', op_of(newer), 'older', older) else call('HDEL', op_of(newer), 'older') end
  elseif older then
    call('HSET', keys, digest, older)
  else
    call('HDEL', keys, digest)
  end
  if older then
    if newer then call('HSET', op_of(older), 'newer', newer) else call('HDEL', op_of(older), 'newer') end
  end
end
local function leave_ledger(id, ledger)
  local others
  if ledger == id then
    others = tonumber(call('HGET', uses, ledger) or '0')
  else
    others = call('HINCRBY', uses, ledger, -1)
    if others == 0 then call('HDEL', uses, ledger) end
    local first = call('HMGET', op_of(ledger), 'seq', 'ledger')
    if first[1] and not first[2] then others = others + 1 end
  end
  if others == 0 then call('DEL', calls_of(ledger), results_of(ledger)) end
end
for _, member in ipairs(found) do
  local id = string.sub(member, 18)
  local digest, older, newer, ledger = unpack(call('HMGET', op_of(id), 'key', 'older', 'newer', 'ledger'))
  call('ZREM', ended_at, member)
  call('ZREM', begun, id)
  call('ZREM', created, id)
  call('DEL', op_of(id), records_of(id))
  if digest then unlink_from_key(id, digest, older, newer) end
  leave_ledger(id, ledger or id)
end
if #found > 0 then call('HSET', journal, 'forgot', by .. ' ' .. #found) end
return #found
""",
)
"""The unix time before which they ended, how many, and a name of this call: the same one again removes no
more. The first write is one that a full memory does not refuse: forgetting is what helps there."""

SINCE: Final = build_script(
    "list_since",
    """
local at, after, limit = ARGV[2], ARGV[3], tonumber(ARGV[4])
local page, skipped = {}, 0
while #page < limit do
  local some = call('ZRANGE', created, at, '+inf', 'BYSCORE', 'LIMIT', skipped, limit, 'WITHSCORES')
  for place = 1, #some, 2 do
    skipped = skipped + 1
    if tonumber(some[place + 1]) > tonumber(at) or some[place] > after then
      page[#page + 1] = read_records(some[place])
      if #page == limit then break end
    end
  end
  if #some < 2 * limit then break end
end
return page
""",
)
"""The unix time of the begin to start with, the id to start behind at that time, and how many."""

COUNT: Final = build_script("count", "return call('ZCARD', begun)")
"""How many operations there are."""
