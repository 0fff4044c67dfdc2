import { once } from 'node:events'
import { Redis } from 'ioredis'
import t from 'tap'
import { type Botica, openBotica } from '../../../fixtures/botica.ts'
import {
  aBot,
  eventually,
  execute,
  finished,
  handler,
  type Untyped,
} from '../../../fixtures/bots/bots.ts'
import { AT_GATE, aGate } from '../../../fixtures/bots/gates.ts'

const later = { Prefer: 'respond-async' }
const PATIENCE_MS = 90_000
// On a busy machine a start and the end of a lock take long.
const env = { EXECUTE_WAIT_MS: '110000' }
const fields = { timeout: 300 }

t.test('loses no response when a worker is killed', { timeout: 300_000 }, async (t) => {
  const fragile = await openBotica(t, { env })
  const worker = await fragile.startWorker()
  const pause = 'if (event.attempt === 1) await new Promise(() => {});'
  const writer = await aBot(
    fragile,
    handler(
      `const { id } = await medplum.createResource({ resourceType: 'Patient' }); ${pause} return id`,
    ),
    { fields },
  )
  const reader = await aBot(fragile, handler(`${pause} return 'attempt ' + event.attempt`), {
    fields,
  })
  const wrote = execute(fragile.admin, writer)
  const read = execute(fragile.admin, reader)
  const accepted = await execute(fragile.admin, reader, {}, later)
  await eventually(async () => {
    const found = await fragile.admin.get<Untyped>('Patient')
    const depths = await fragile.services.queues.depths()
    const running = [depths['bots-sync']?.active, depths['bots-async']?.active]
    return found.body.entry?.length === 1 && running.join() === '2,1' ? true : undefined
  }, PATIENCE_MS)
  const killed = once(worker, 'close')
  worker.kill('SIGKILL')
  await killed
  await fragile.startWorker()
  const interrupted = await wrote
  t.equal(interrupted.status, 500)
  t.match(interrupted.body.issue[0], { code: 'transient', details: { text: /can be retried/ } })
  t.equal((await read).text, 'attempt 2')
  const job = await finished(fragile.admin, accepted.headers.get('content-location'), PATIENCE_MS)
  t.match(job.output.parameter[0], { valueString: 'attempt 2' })
  const patients = await fragile.admin.get<Untyped>('Patient')
  t.equal(patients.body.entry.length, 1, 'writes once')
})

t.test('delivers responses after lost connections to Redis', async (t) => {
  const botica = await openBotica(t, { worker: 'process', env })
  const id = await aBot(botica, handler(`${AT_GATE} return 'attempt ' + event.attempt`), { fields })
  const gates = [aGate(botica.admin), aGate(botica.admin)]
  const running = gates.map(({ gate }) => execute(botica.admin, id, { gate }))
  await eventually(async () => ((await active(botica)) === 2 ? true : undefined), PATIENCE_MS)
  await breakConnections(botica)
  for (const { open } of gates) await open()
  const texts = (await Promise.all(running)).map(({ text }) => text)
  t.same(texts, ['attempt 1', 'attempt 1'])
  t.equal((await execute(botica.admin, id)).status, 200)
})

async function active({ services }: Botica): Promise<number | undefined> {
  return (await services.queues.depths())['bots-sync']?.active
}

/** Closes every connection of web and worker at once, as a restart of Redis does. */
async function breakConnections({ services }: Botica): Promise<void> {
  const { redisUrl } = services.config
  const redis = new Redis(redisUrl)
  const own = `db=${new URL(redisUrl).pathname.slice(1)} `
  const clients = String(await redis.client('LIST')).split('\n')
  const me = await redis.client('ID')
  for (const line of clients.filter((line) => line.includes(own))) {
    const id = Number(/^id=(\d+)/.exec(line)?.[1])
    if (id !== me) await redis.client('KILL', 'ID', id)
  }
  redis.disconnect()
}
