/** A worker says all of one turn of the event loop about its runs in one command. */
import { randomUUID } from 'node:crypto'
import { Redis } from 'ioredis'
import t from 'tap'
import { readConfig } from '../../shared/config/config.ts'
import { createLogger } from '../../shared/log.ts'
import { runCommandsOn } from '../../shared/platform/queue/run-commands.ts'
import { openRedis } from '../../shared/platform/redis/redis.ts'

const LOCK_MS = 60_000

const config = readConfig()
const redis = openRedis(config, 'worker', createLogger('silent', 'worker'))
const watcher = new Redis(config.redisUrl)
t.teardown(() => {
  redis.disconnect()
  watcher.disconnect()
})

/** A queue with jobs that wait, and those that are active under the token `mine`. */
async function aQueue(waiting: Record<string, object>, active: readonly string[]) {
  const queue = `said:${randomUUID()}`
  const key = (part: string) => `${queue}:${part}`
  for (const [id, fields] of Object.entries(waiting)) {
    await watcher.hset(key(id), {
      name: 'execute',
      data: '{}',
      timestamp: 1,
      priority: 0,
      ...fields,
    })
    await watcher.lpush(key('wait'), id)
  }
  for (const id of active) {
    await watcher.hset(key(id), { name: 'execute', data: '{}' })
    await watcher.lpush(key('active'), id)
    await watcher.set(key(`${id}:lock`), 'mine')
  }
  const job = (id: string, takesNext = true) => ({ id, token: 'mine', lockMs: LOCK_MS, takesNext })
  const reply = (runId: string) => ({
    flight: key('flight'),
    keys: [key(`reply:${runId}`), key(`late:${runId}`), ''] as const,
    runId,
    channel: key('channel'),
    message: `reply to ${runId}`,
    keep: true,
  })
  const mark = (runId: string, token = 'mine') => ({
    journal: key(`journal:${runId}`),
    lock: key(`${runId}:lock`),
    token,
    keepMs: LOCK_MS,
  })
  return { key, commands: runCommandsOn(redis, queue), job, reply, mark }
}

t.test('all of one turn is one command, in the order in which it was said', async (t) => {
  const { key, commands, job, reply, mark } = await aQueue({ next: {} }, ['a', 'b'])
  const sent: string[] = []
  const monitor = watcher.duplicate({ monitor: true })
  t.teardown(() => monitor.disconnect())
  monitor.on('error', () => undefined)
  await new Promise((resolve) => monitor.once('monitoring', resolve))
  const heard = Promise.withResolvers<void>()
  monitor.on('monitor', (_time: string, [command = '', ...args]: string[], source: string) => {
    if (args.some((arg) => arg.includes(key('')))) sent.push(`${source === 'lua'} ${command}`)
    if (command === 'echo') heard.resolve()
  })
  await Promise.all([
    commands.mark(mark('b')),
    commands.reply(reply('a')),
    commands.complete(job('a')),
    commands.reply(reply('b')),
  ])
  await watcher.echo('end')
  await heard.promise
  const own = sent.filter((line) => line.startsWith('false'))
  // A Redis that does not know the script is sent it once.
  t.ok(own.length <= 2 && new Set(own).size === own.length, own.join())
  t.ok(sent.indexOf('true PUBLISH') < sent.indexOf('true DEL'), sent.join())
})

t.test('one that fails does not keep the others from theirs', async (t) => {
  const { key, commands, job, reply } = await aQueue({ next: {} }, ['a', 'b'])
  const refused = { ...reply('a'), flight: key('text') }
  await watcher.set(key('text'), 'no set')
  const [failed, other, ended] = await Promise.allSettled([
    commands.reply(refused),
    commands.reply(reply('b')),
    commands.complete(job('b')),
  ])
  t.match(failed, { status: 'rejected', reason: /WRONGTYPE/ })
  t.match(other, { status: 'fulfilled', value: false })
  t.match(ended, { status: 'fulfilled', value: { job: { id: 'next' } } })
  t.equal(await watcher.get(key('reply:b')), 'reply to b')
})

t.test('a caller that was sent away is known by the reply', async (t) => {
  const { key, commands, reply } = await aQueue({}, [])
  await watcher.set(key('late:a'), '1')
  const both = await Promise.all([commands.reply(reply('a')), commands.reply(reply('b'))])
  t.strictSame(both, [true, false])
})

t.test('the job that is brought along says how often it was begun and was lost', async (t) => {
  const fields = { data: '{"n":1}', ats: 1, stc: 1, timestamp: 5, priority: 0 }
  const { key, commands, job } = await aQueue({ next: fields }, ['a'])
  t.match(await commands.complete(job('a')), {
    job: { id: 'next', data: '{"n":1}', attemptsStarted: 2, stalledCounter: 1, timestamp: 5 },
  })
  t.equal(await watcher.get(key('next:lock')), 'mine')
  t.strictSame(await watcher.lrange(key('active'), 0, -1), ['next'])
  t.equal(await watcher.exists(key('a')), 0)
})

t.test('jobs that end in one turn bring a job each, as far as there are some', async (t) => {
  const { key, commands, job } = await aQueue({ first: {}, second: {}, third: {} }, ['a', 'b', 'c'])
  const ended = await Promise.all([
    commands.complete(job('a')),
    commands.complete(job('b', false)),
    commands.complete(job('c')),
  ])
  t.match(ended, [{ job: { id: 'first' } }, 0, { job: { id: 'second' } }])
  t.ok(await watcher.exists(key('marker')), 'others are woken for what is left')
  const last = await Promise.all([
    commands.complete(job('first')),
    commands.complete(job('second')),
  ])
  t.match(last, [{ job: { id: 'third' } }, { job: undefined, dueAt: 0 }])
})

t.test('a job that is no longer held is not completed', async (t) => {
  const { key, commands, job } = await aQueue({}, ['lost', 'taken'])
  await watcher.del(key('lost:lock'))
  await watcher.set(key('taken:lock'), 'theirs')
  const codes = await Promise.all(['lost', 'taken', 'gone'].map((id) => commands.complete(job(id))))
  t.strictSame(codes, [-2, -6, -1], "BullMQ's codes of a lock that is gone, another's, no job")
  t.equal(await watcher.exists(key('lost'), key('taken')), 2)
})

t.test('one attempt of a run may write', async (t) => {
  const { commands, mark } = await aQueue({}, ['a'])
  const answers = await Promise.all([
    commands.mark(mark('a', 'theirs')),
    commands.mark(mark('a')),
    commands.mark(mark('a')),
    commands.mark(mark('a', 'theirs')),
    commands.mark(mark('unknown')),
  ])
  t.strictSame(answers, [0, 1, 1, 0, -1])
})
