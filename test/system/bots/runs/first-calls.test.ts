/** The first runs on a worker that has just started. */
import { readFileSync } from 'node:fs'
import t from 'tap'
import { until } from '../../../fixtures/botica.ts'
import { aBot, handler } from '../../../fixtures/bots/bots.ts'
import { openCluster, said } from '../../../fixtures/services/cluster.ts'

const PROJECTS = 6

const cluster = await openCluster(t)

/** Returns the executors of all workers in this state. */
async function countExecutors(state: string): Promise<number> {
  const { body } = await cluster.superAdmin.get<string>('/metrics')
  const lines = String(body).matchAll(/^\w*bot_executors\{(.*)\} (\d+)$/gm)
  return [...lines]
    .filter(([, labels = '']) => labels.includes(`state="${state}"`))
    .reduce((sum, [, , count]) => sum + Number(count), 0)
}

t.test('a worker starts with an executor for each project that ran bots before', async (t) => {
  const old = await cluster.startWorker()
  const callers = await Promise.all(
    Array.from({ length: PROJECTS }, async (_, n) => {
      const tenant = await cluster.createTenant(`Project ${n}`)
      const bot = await aBot(tenant, handler('return event.input'))
      const call = async () => {
        const { status } = await tenant.admin.post(`Bot/${bot}/$execute`, { n })
        return status
      }
      return { call }
    }),
  )
  const callAll = () => Promise.all(callers.map(({ call }) => call()))
  t.same(await callAll(), Array(PROJECTS).fill(200))
  await until(async () => (await countExecutors('bound')) === PROJECTS, 60_000)
  old.child.kill('SIGKILL')
  await old.ended
  await cluster.startWorker()
  await until(async () => (await countExecutors('spare')) === PROJECTS, 180_000)
  t.same(await callAll(), Array(PROJECTS).fill(200))
  // The killed worker's figures expire after a few seconds; two spares are kept for new projects.
  await until(async () => (await countExecutors('spare')) === 2, 60_000)
  await until(async () => (await countExecutors('bound')) === PROJECTS, 60_000)
})

t.test('a worker starts executors only if one of its queues runs bots', async (t) => {
  for (const [WORKER_QUEUES, hasExecutors] of [
    ['mail,upkeep', false],
    ['change', true],
  ] as const) {
    const worker = cluster.run('worker', { WORKER_QUEUES })
    await said(worker, '"taking jobs"')
    const { pid } = worker.child
    const children = readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8')
    t.equal(children !== '', hasExecutors, WORKER_QUEUES)
    worker.child.kill('SIGKILL')
    await worker.ended
  }
})
