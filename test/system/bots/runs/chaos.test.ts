import t from 'tap'
import { openBotica } from '../../../fixtures/botica.ts'
import { aBot } from '../../../fixtures/bots/bots.ts'
import { CHAOS_BOT, runChaos } from './chaos.ts'

t.setTimeout(400_000)
const botica = await openBotica(t)
const { admin, baseUrl } = botica

t.test('ends every accepted run in one state while workers are killed', async (t) => {
  const botId = await aBot(botica, CHAOS_BOT)
  const ledger = await runChaos({
    baseUrl,
    token: admin.token ?? '',
    botId,
    seconds: 7,
    killEveryMs: 3000,
    workers: 2,
    callers: 3,
    startWorker: botica.startWorker,
  })
  t.comment(JSON.stringify(ledger))
  const { accepted, completed, failed, cancelled, lost, kills, sync, slowestSyncMs } = ledger
  t.ok(kills > 0)
  t.ok(completed > 0)
  t.equal(lost, 0)
  t.equal(completed + failed + cancelled, accepted)
  t.same(
    Object.keys(sync).filter((what) => !['200', '202', '503', 'interrupted'].includes(what)),
    [],
    'waiting callers get their result or the state of the run',
  )
  t.ok(slowestSyncMs < 60_000, `answers the slowest caller in ${slowestSyncMs} ms`)
})
