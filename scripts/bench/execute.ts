/**
 * `$execute` of a trivial bot over HTTP, through web, Redis, worker and sandbox, against the raw BullMQ
 * round trip of the same payload; both with 8 worker slots, in alternating rounds.
 */
import type { Figure } from '../bench.ts'
import { descendantsCpuUs } from './cpu.ts'
import { type Load, measure, median, openWire } from './load.ts'
import { openRawQueue } from './raw-queue.ts'
import { onStage, type Stage } from './stage.ts'

const ROUNDS = 5
/** V8 needs some ten thousand runs before the code of a process is what it stays. */
const WARM_UP_S = 8
const input = JSON.stringify({ text: 'x'.repeat(190) })

interface Costed extends Load {
  /** The CPU time of all processes that serve one call, in microseconds. */
  readonly cpuUs: number
}

/** Runs of the bot with an AuditEvent each, and where only failures leave one. */
type Round = Readonly<Record<'limit' | 'silent' | 'audited', Costed>>

export function execute(seconds: number): Promise<readonly Figure[]> {
  return onStage(async (stage) => {
    await stage.start('worker', { WORKER_CONCURRENCY: '8' })
    const raw = await openRawQueue(stage.config.redisUrl)
    const { token, silent, audited } = await deployEcho(stage)
    const rounds = async (callers: number, count: number, roundSeconds: number) => {
      const wire = await openWire(stage.baseUrl, callers, token, 'application/json')
      const post = (url: string) => async (caller: number) =>
        (await wire.send(caller, 'POST', url, input)) === 200
      const measured: Round[] = []
      for (let round = 0; round < count; round++) {
        measured.push({
          limit: await load(callers, roundSeconds, () => raw.roundTrip(input), true),
          silent: await load(callers, roundSeconds, post(silent), false),
          audited: await load(callers, roundSeconds, post(audited), false),
        })
      }
      wire.close()
      return measured
    }
    try {
      await rounds(64, 1, WARM_UP_S)
      const figures: Figure[] = []
      for (const callers of [1, 64, 256]) {
        figures.push(...report(callers, await rounds(callers, ROUNDS, seconds)))
      }
      return figures
    } finally {
      await raw.close()
    }
  })
}

/** `countSelf`: this process is one end of the raw queue, but only a client of the service. */
async function load(
  callers: number,
  seconds: number,
  call: (caller: number) => Promise<boolean>,
  countSelf: boolean,
): Promise<Costed> {
  const own = process.cpuUsage()
  const before = descendantsCpuUs()
  let calls = 0
  const measured = await measure(callers, seconds, (caller) => {
    calls += 1
    return call(caller)
  })
  const { user, system } = process.cpuUsage(own)
  const usedUs = descendantsCpuUs() - before + (countSelf ? user + system : 0)
  return { ...measured, cpuUs: usedUs / calls }
}

function report(callers: number, rounds: readonly Round[]): Figure[] {
  const middle = (side: keyof Round, key: keyof Costed) =>
    median(rounds.map((round) => round[side][key]))
  const show = (side: keyof Round) =>
    `${Math.round(middle(side, 'perSecond'))}/s, p50 ${middle(side, 'p50Ms').toFixed(2)} ms`
  const ratio = (side: keyof Round, key: 'perSecond' | 'cpuUs') =>
    median(rounds.map((round) => round[side][key] / round.limit[key])).toFixed(2)
  const cpu = (side: keyof Round) => `${Math.round(middle(side, 'cpuUs'))} us`
  const what = `execute, ${callers} callers`
  const limit = show('limit')
  if (callers === 1) {
    const more = median(rounds.map(({ silent, limit }) => silent.p50Ms - limit.p50Ms))
    const ours = show('silent')
    return [
      {
        what: `${what}, p50 above raw`,
        ours,
        limit,
        ratio: `+${more.toFixed(2)} ms`,
        required: '<= 1.5 ms',
      },
    ]
  }
  return [
    {
      what: `${what}, without AuditEvent`,
      ours: show('silent'),
      limit,
      ratio: ratio('silent', 'perSecond'),
      required: '>= 0.35',
    },
    { what, ours: show('audited'), limit, ratio: ratio('audited', 'perSecond'), required: '' },
    {
      what: `${what}, CPU a run`,
      ours: cpu('audited'),
      limit: cpu('limit'),
      ratio: ratio('audited', 'cpuUs'),
      required: '<= 3.8',
    },
  ]
}

/** One bot of which every run leaves an AuditEvent, and one of which only failures do. */
async function deployEcho(
  stage: Stage,
): Promise<{ readonly token: string; readonly silent: string; readonly audited: string }> {
  const { admin, projectId, token } = await stage.openProject()
  const deploy = async (auditEventTrigger: string) => {
    const bot = await admin.post(`admin/projects/${projectId}/bot`, { name: 'echo' })
    const changed = JSON.stringify({ ...bot, auditEventTrigger })
    await admin.send('PUT', `fhir/R4/Bot/${bot.id}`, changed, 'application/fhir+json')
    await admin.post(`fhir/R4/Bot/${bot.id}/$deploy`, {
      code: 'exports.handler = async (medplum, event) => event.input',
    })
    return `/fhir/R4/Bot/${bot.id}/$execute`
  }
  return { token, silent: await deploy('on-error'), audited: await deploy('always') }
}
