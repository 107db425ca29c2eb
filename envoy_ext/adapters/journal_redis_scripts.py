"""The atomic steps of a Redis journal: one Lua script for each, and the names of the keys they use.

Redis runs a script with nothing in between (https://redis.io/docs/latest/develop/programmability/eval-intro/),
but takes nothing back when one fails half way. So each script reads every key that it is going to write
before its first write: a key of a wrong type, a full memory or a read-only server then ends it with nothing
done.

All keys of a journal begin with `{prefix}:`. The braces are a hash tag, which puts them into one slot of a
Redis Cluster; a script is told the first key and names the others itself.

    {prefix}:journal        hash    schema; how many operations have begun; how many jobs were submitted; how
                                    many seats were given out; `forgot` and `forgot_results`, what the last
                                    call removed that forgets
    {prefix}:seats          hash    each seat that is there, and the number of its last beat
    {prefix}:begun          zset    every operation, by its place in the order of begin
    {prefix}:created        zset    every operation, by the time of its begin
    {prefix}:ended          zset    what may be forgotten, by the time of its end: operations that have ended
                                    and that no unfinished job needs, each as its place and id, and jobs that
                                    have, each as `j`, its number and id
    {prefix}:keys           hash    digest of caller, path and key hash -> the newest operation under them
    {prefix}:uses           hash    a ledger -> how many operations and unfinished jobs have it, but for those
                                    that it is named after
    {prefix}:op:ID          hash    seq, owner, token; `ledger`, unless it is its own; `ended`, when an end is
                                    among the records; `key`, its digest, and `older` and `newer`, its
                                    neighbours under it; `answer`, what is kept of it; `job`, whose run it is,
                                    and `held`, the time of its end as long as that job needs it
    {prefix}:records:ID     list    the records, oldest first, as `journal_codec` writes them
    {prefix}:open:SEAT      zset    the operations a seat owns that have not ended, in the order of begin
    {prefix}:owners         set     the seats that have such operations
    {prefix}:calls:ID       hash    a ledger: `version`, which grows with each write; `N`, its Nth call as
                                    `tool_call_codec` writes it; `N by`, the write that it is from
    {prefix}:results:ID     hash    of the calls of a ledger -> what each has answered
    {prefix}:jobs           zset    every job, by its number
    {prefix}:jobs:queued    zset    those in this state, by their number; `jobs:running` too
    {prefix}:jobs:keys      hash    digest of caller, path and key hash -> the job under them
    {prefix}:jobs:counts    hash    of those that have not ended: `jobs`, `bytes` of their bodies, and of each
                                    pool and state how many
    {prefix}:jobs:answered  zset    those that have ended and may have results, by the time of their end
    {prefix}:job:ID         hash    number; `body`, the job as `job_codec` writes it, but for its number;
                                    `version`, which grows with each write; state, owner, pool, bytes; `key`,
                                    its digest; `ledger`, unless it is its own; `runs`, how many, and each as
                                    `run N`; `request`, until it ends
"""

import hashlib
from dataclasses import dataclass, field
from typing import Final

SCHEMA_VERSION: Final = 2
"""A journal that has had a job has 2, any other one has 1: a release that knows no jobs reads that too. It
would forget what a job needs, and begin what a job's key forbids."""
FIRST_SCHEMA: Final = 1

DONE: Final = b"done"
NOT_OWNER: Final = b"not owner"
SEAT_LOST: Final = b"seat lost"
HELD: Final = b"held"
"""The key has another operation; its records follow."""
HELD_BY_JOB: Final = b"held by job"
"""The key has a job; its number and its body follow."""
LATER_SCHEMA: Final = "LATERSCHEMA"
"""How the error begins that a script answers when a later release has written the journal."""


@dataclass(frozen=True, slots=True)
class Script:
    """A Lua script. It is given `{prefix}:journal` as its key, and the prefix and its arguments after it."""

    name: str
    text: str
    sha: str = field(init=False)
    """What EVALSHA calls it by."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "sha", hashlib.sha1(self.text.encode()).hexdigest())


_PRELUDE: Final = f"""
local base = ARGV[1]
local call = redis.call
local journal, seats, owners = base .. 'journal', base .. 'seats', base .. 'owners'
local begun, created, ended_at = base .. 'begun', base .. 'created', base .. 'ended'
local keys, uses = base .. 'keys', base .. 'uses'
local function op_of(id) return base .. 'op:' .. id end
local function records_of(id) return base .. 'records:' .. id end
local function open_of(seat) return base .. 'open:' .. seat end
local function calls_of(id) return base .. 'calls:' .. id end
local function results_of(id) return base .. 'results:' .. id end
local schema = call('HGET', journal, 'schema')
if schema and tonumber(schema) > {SCHEMA_VERSION} then
  return redis.error_reply('{LATER_SCHEMA} ' .. schema)
end
local jobs, job_keys, job_counts = base .. 'jobs', base .. 'jobs:keys', base .. 'jobs:counts'
local answered = base .. 'jobs:answered'
local function job_of(id) return base .. 'job:' .. id end
local function jobs_in(state) return base .. 'jobs:' .. state end
local function has_ended(state) return state ~= 'queued' and state ~= 'running' end
local function read_job(id) return call('HMGET', job_of(id), 'number', 'body') end
local function forget_unused(ledger)
  local others = tonumber(call('HGET', uses, ledger) or '0')
  local first = call('HMGET', op_of(ledger), 'seq', 'ledger')
  if first[1] and not first[2] then others = others + 1 end
  if others == 0 then call('DEL', calls_of(ledger), results_of(ledger)) end
end
local function leave_ledger(ledger)
  if call('HINCRBY', uses, ledger, -1) == 0 then call('HDEL', uses, ledger) end
  forget_unused(ledger)
end
local function read_records(id) return call('LRANGE', records_of(id), 0, -1) end
local function disown(seat, id)
  call('ZREM', open_of(seat), id)
  if call('ZCARD', open_of(seat)) == 0 then call('SREM', owners, seat) end
end
local function own(seat, id, seq)
  call('ZADD', open_of(seat), seq, id)
  call('SADD', owners, seat)
end
"""


def build_script(name: str, body: str) -> Script:
    """A script that refuses the journal of a later release, and knows the keys by name."""
    return Script(name, _PRELUDE + body)


BEGIN: Final = build_script(
    "begin",
    f"""
local id, owner, after, at, digest, ledger, job, first, second = unpack(ARGV, 2)
if call('HEXISTS', seats, owner) == 0 then return {{'{SEAT_LOST.decode()}'}} end
local known = call('HGET', op_of(id), 'owner')
if known then return {{known == owner and '{DONE.decode()}' or '{NOT_OWNER.decode()}'}} end
if job ~= '' then
  local state, runner, runs = unpack(call('HMGET', job_of(job), 'state', 'owner', 'runs'))
  local newest = state == 'running' and runner == owner and call('HGET', job_of(job), 'run ' .. runs)
  if newest ~= id then return {{'{NOT_OWNER.decode()}'}} end
end
local holder
if digest ~= '' then
  holder = call('HGET', job_keys, digest)
  if holder then return {{'{HELD_BY_JOB.decode()}', read_job(holder)}} end
  holder = call('HGET', keys, digest)
  if holder and ('=' .. holder) ~= after then return {{'{HELD.decode()}', read_records(holder)}} end
end
call('ZCARD', begun); call('ZCARD', created); call('HLEN', uses); call('LLEN', records_of(id))
call('ZCARD', open_of(owner)); call('SCARD', owners)
if holder then call('HLEN', op_of(holder)) end
local seq = call('HINCRBY', journal, 'begun', 1)
if not schema then call('HSET', journal, 'schema', {FIRST_SCHEMA}) end
call('HSET', op_of(id), 'seq', seq, 'owner', owner, 'token', 1)
if ledger ~= id then
  call('HSET', op_of(id), 'ledger', ledger)
  call('HINCRBY', uses, ledger, 1)
end
if job ~= '' then call('HSET', op_of(id), 'job', job) end
call('RPUSH', records_of(id), first, second)
call('ZADD', begun, seq, id)
call('ZADD', created, at, id)
own(owner, id, seq)
if digest ~= '' then
  call('HSET', op_of(id), 'key', digest)
  if holder then
    call('HSET', op_of(id), 'older', holder)
    call('HSET', op_of(holder), 'newer', id)
  end
  call('HSET', keys, digest, id)
end
return {{'{DONE.decode()}'}}
""",
)
"""id, owner, after ("" or "=" and an id), unix time, digest ("" without a key), ledger, the job that it is a
run of ("" for none), two records."""

APPEND: Final = build_script(
    "append",
    f"""
local id, token, ends, answer = unpack(ARGV, 2, 5)
local seq, owner, has, ended, job = unpack(call('HMGET', op_of(id), 'seq', 'owner', 'token', 'ended', 'job'))
if not has or tonumber(has) ~= tonumber(token) then return {{'{NOT_OWNER.decode()}'}} end
call('LLEN', records_of(id)); call('ZCARD', open_of(owner)); call('SCARD', owners)
call('ZCARD', ended_at)
local state = job and call('HGET', job_of(job), 'state')
for place = 6, #ARGV do call('RPUSH', records_of(id), ARGV[place]) end
if ends ~= '' and not ended then
  call('HSET', op_of(id), 'ended', 1)
  if state and not has_ended(state) then
    call('HSET', op_of(id), 'held', ends)
  else
    call('ZADD', ended_at, ends, string.format('%016d:%s', seq, id))
  end
  disown(owner, id)
end
if answer ~= '' then call('HSETNX', op_of(id), 'answer', answer) end
return {{'{DONE.decode()}'}}
""",
)
"""id, token, the time of the end among them ("" for none), the answer to keep ("" for none), the records."""

TAKE_OVER: Final = build_script(
    "take_over",
    f"""
local id, seen, seat, record = unpack(ARGV, 2)
if call('HEXISTS', seats, seat) == 0 then return {{'{SEAT_LOST.decode()}'}} end
local seq, owner, token, ended = unpack(call('HMGET', op_of(id), 'seq', 'owner', 'token', 'ended'))
if not token then return {{'{NOT_OWNER.decode()}'}} end
token = tonumber(token)
if token == seen + 1 and owner == seat then return {{'{DONE.decode()}', read_records(id)}} end
if token ~= tonumber(seen) or call('HEXISTS', seats, owner) == 1 then
  return {{'{NOT_OWNER.decode()}'}}
end
call('LLEN', records_of(id)); call('ZCARD', open_of(owner)); call('ZCARD', open_of(seat))
call('SCARD', owners)
call('HSET', op_of(id), 'owner', seat, 'token', token + 1)
call('RPUSH', records_of(id), record)
if not ended then
  disown(owner, id)
  own(seat, id, seq)
end
return {{'{DONE.decode()}', read_records(id)}}
""",
)
"""id, the token seen, the new owner's seat, the record of the change."""

TAKE_SEAT: Final = build_script(
    "take_seat",
    f"""
local gateway, suffix = unpack(ARGV, 2)
call('HLEN', seats)
local seat = gateway .. '/' .. call('HINCRBY', journal, 'seats', 1) .. suffix
if not schema then call('HSET', journal, 'schema', {FIRST_SCHEMA}) end
call('HSET', seats, seat, 1)
return seat
""",
)
"""The gateway's name, and what follows the number."""

BEAT: Final = build_script(
    "beat",
    f"""
local seat, number = unpack(ARGV, 2)
local last = call('HGET', seats, seat)
if not last then return {{'{SEAT_LOST.decode()}'}} end
if tonumber(number) > tonumber(last) then call('HSET', seats, seat, number) end
return {{'{DONE.decode()}'}}
""",
)

REMOVE_SEAT: Final = build_script(
    "remove_seat",
    """
local seat, number = unpack(ARGV, 2)
local last = call('HGET', seats, seat)
if last and tonumber(last) == tonumber(number) then
  call('HDEL', seats, seat)
  last = false
end
return last and 0 or 1
""",
)

FIND: Final = build_script(
    "find_by_key",
    """
local id = call('HGET', keys, ARGV[2])
return id and read_records(id) or {}
""",
)
"""The digest of the key."""

LIST: Final = build_script(
    "list_recent",
    """
local kind, bound, limit = unpack(ARGV, 2)
local top = '+inf'
if kind == 'id' then bound = call('HGET', op_of(bound), 'seq') end
if kind ~= 'all' then
  if not bound then return {} end
  top = '(' .. bound
end
local found = call('ZRANGE', begun, top, '-inf', 'BYSCORE', 'REV', 'LIMIT', 0, limit, 'WITHSCORES')
local page = {}
for place = 1, #found, 2 do page[#page + 1] = {found[place + 1], read_records(found[place])} end
return page
""",
)
"""`all`, `id` or `seq`; the id or the place to begin below; how many. Each with its place and its records."""

ORPHANED: Final = build_script(
    "orphaned",
    """
local after, limit = ARGV[2], tonumber(ARGV[3])
local found = {}
for _, owner in ipairs(call('SMEMBERS', owners)) do
  if call('HEXISTS', seats, owner) == 0 then
    local from = '(' .. after
    local some = call('ZRANGE', open_of(owner), from, '+inf', 'BYSCORE', 'LIMIT', 0, limit, 'WITHSCORES')
    for place = 1, #some, 2 do found[#found + 1] = {some[place + 1], some[place]} end
  end
end
table.sort(found, function(one, other) return tonumber(one[1]) < tonumber(other[1]) end)
local page = {}
for place = 1, math.min(limit, #found) do
  page[place] = {found[place][1], read_records(found[place][2])}
end
return page
""",
)
"""The place to begin above, and how many. Each with its place and its records."""

_PROBED: Final = (
    (
        "HSET",
        "field",
        "1",
    ),  # first: a full memory refuses only what may grow, and only a script's first write
    ("HSETNX", "field", "1"),
    ("HINCRBY", "field", "1"),
    ("HGET", "field"),
    ("HMGET", "field"),
    ("HEXISTS", "field"),
    ("HLEN",),
    ("HGETALL",),
    ("HDEL", "field"),
    ("DEL",),
    ("RPUSH", "element"),
    ("LRANGE", "0", "-1"),
    ("LLEN",),
    ("DEL",),
    ("ZADD", "1", "member"),
    ("ZRANGE", "-inf", "+inf", "BYSCORE"),
    ("ZCARD",),
    ("ZREM", "member"),
    ("DEL",),
    ("SADD", "member"),
    ("SMEMBERS",),
    ("SCARD",),
    ("SREM", "member"),
    ("DEL",),
)
PROBE: Final = Script(
    "probe",
    "local probe = ARGV[1] .. 'probe'\nlocal answer\n"
    + "\n".join(
        f"answer = redis.pcall('{command}', probe{''.join(f', {word!r}' for word in words)})\n"
        f"if type(answer) == 'table' and answer.err then return {{'{command}', answer.err}} end"
        for command, *words in _PROBED
    )
    + _PRELUDE
    + f"\nif not schema then call('HSET', journal, 'schema', {FIRST_SCHEMA}) end\nreturn {{}}\n",
)
"""Runs every command that the other scripts call, on a key of its own: a user who lacks one is found out
before a script could be stopped half way. The first one that failed, and how; nothing when all can be run."""

COMMANDS: Final = frozenset(command.lower() for command, *_ in _PROBED)
"""What scripts call."""
