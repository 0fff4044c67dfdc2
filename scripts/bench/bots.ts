/**
 * Four kinds of bots over HTTP at 1, 16, 64 and 256 callers, each with its bound on this machine: the same requests
 * over REST, raw BullMQ round trips, the bot's loop in plain Node, or the clock.
 */
import { availableParallelism } from 'node:os'
import type { Figure } from '../bench.ts'
import { descendantsCpuUs } from './cpu.ts'
import { type Load, measure, openWire } from './load.ts'
import { openRawQueue } from './raw-queue.ts'
import { type BenchProject, withStage } from './stage.ts'

const CALLERS = [1, 16, 64, 256]
/** V8 needs some ten thousand runs to reach a steady state. */
const WARM_UP_S = 8
const WAIT_MS = 200
const LOOPS = 600_000
const loop = `let x = 0
  for (let i = 0; i < ${LOOPS}; i++) x = (x * 31 + i) % 1000003
  return { x }`

const handlers = {
  echo: 'return event.input',
  cpu: loop,
  work: `const patient = await medplum.readResource('Patient', event.input.id)
  return await medplum.createResource({
    resourceType: 'Basic', code: { text: 'x' }, subject: { reference: 'Patient/' + patient.id } })`,
  wait: `await new Promise((end) => setTimeout(end, ${WAIT_MS}))
  return event.input`,
}
type Bot = keyof typeof handlers

interface Costed extends Load {
  /** CPU time of web, worker and executor per call in ms, without the stores. */
  readonly cpuMs: number
}

type Round = Readonly<Record<Bot | 'read' | 'create', Costed> & { raw: Load }>

export function bots(seconds: number): Promise<readonly Figure[]> {
  return withStage(async (stage) => {
    await stage.start('worker')
    const raw = await openRawQueue(stage.config.redisUrl)
    const project = await stage.openProject()
    const { token, principal } = project
    const urls = await deployAll(project)
    const patient = { resourceType: 'Patient' }
    const { id } = await stage.services.repository.create(principal, patient)
    const input = JSON.stringify({ id, text: 'x'.repeat(150) })
    const basic = JSON.stringify({ resourceType: 'Basic', code: { text: 'x' } })

    async function round(callers: number, roundSeconds: number): Promise<Round> {
      const wire = await openWire(stage.baseUrl, callers, token, 'application/json')
      const cost = (send: (caller: number) => Promise<number>) =>
        costed(callers, roundSeconds, async (caller) => (await send(caller)) < 300)
      const run = (bot: Bot) => cost((caller) => wire.send(caller, 'POST', urls[bot], input))
      try {
        return {
          read: await cost((caller) => wire.send(caller, 'GET', `/fhir/R4/Patient/${id}`)),
          create: await cost((caller) => wire.send(caller, 'POST', '/fhir/R4/Basic', basic)),
          raw: await measure(callers, roundSeconds, () => raw.roundTrip(input)),
          echo: await run('echo'),
          cpu: await run('cpu'),
          work: await run('work'),
          wait: await run('wait'),
        }
      } finally {
        wire.close()
      }
    }

    await round(64, WARM_UP_S)
    const loopMs = timeOfLoop()
    const figures: Figure[] = []
    for (const callers of CALLERS) {
      figures.push(...report(callers, await round(callers, seconds), loopMs))
    }
    await raw.close()
    return figures
  })
}

async function deployAll({ deploy }: BenchProject): Promise<Readonly<Record<Bot, string>>> {
  const urls: Record<string, string> = {}
  for (const [name, body] of Object.entries(handlers)) urls[name] = await deploy(body)
  // Keys are those of `handlers`.
  return urls as Record<Bot, string>
}

async function costed(
  callers: number,
  seconds: number,
  call: (caller: number) => Promise<boolean>,
): Promise<Costed> {
  const isOurs = (command: string) => command.includes('node')
  const before = descendantsCpuUs(isOurs)
  let calls = 0
  const measured = await measure(callers, seconds, (caller) => {
    calls += 1
    return call(caller)
  })
  return { ...measured, cpuMs: (descendantsCpuUs(isOurs) - before) / 1000 / calls }
}

function timeOfLoop(): number {
  const work = new Function(loop)
  for (let i = 0; i < 100; i++) work()
  const began = performance.now()
  for (let i = 0; i < 100; i++) work()
  return (performance.now() - began) / 100
}

function report(callers: number, round: Round, loopMs: number): Figure[] {
  const { read, create, raw, echo, cpu, work, wait } = round
  const rate = ({ perSecond, p99Ms }: Load) => `${Math.round(perSecond)}/s, p99 ${ms(p99Ms)}`
  const most = (perSecond: number) => `${Math.round(perSecond)}/s`
  const loops = Math.min(callers, availableParallelism()) * (1000 / loopMs)
  const waits = Math.min((callers * 1000) / WAIT_MS, echo.perSecond)
  const line = (
    what: string,
    ours: string,
    [limit, ratio, required]: [string, number, string],
  ) => ({
    ...{ what: `${what}, ${callers} callers`, ours, limit },
    ...{ ratio: ratio.toFixed(2), required },
  })
  const apart = read.cpuMs + create.cpuMs
  return [
    callers === 1
      ? {
          what: 'echo, 1 caller, p50 above a read',
          ours: ms(echo.p50Ms),
          limit: ms(read.p50Ms),
          ratio: `+${ms(echo.p50Ms - read.p50Ms)}`,
          required: '<= 2 ms',
        }
      : line('echo, CPU to that of a read', `${ms(echo.cpuMs)}, ${rate(echo)}`, [
          ms(read.cpuMs),
          echo.cpuMs / read.cpuMs,
          callers === 64 ? '<= 0.5 ms' : '',
        ]),
    line('echo, to round trips of raw BullMQ', rate(echo), [
      rate(raw),
      echo.perSecond / raw.perSecond,
      callers > 16 ? '>= 0.35' : '',
    ]),
    line('a loop, to plain Node', rate(cpu), [most(loops), cpu.perSecond / loops, '']),
    line('read and create, CPU to that over REST', `${ms(work.cpuMs)}, ${rate(work)}`, [
      ms(apart),
      work.cpuMs / apart,
      callers === 64 ? '<= 1.2 ms' : '',
    ]),
    line(`a wait of ${WAIT_MS} ms, to the clock or echo`, rate(wait), [
      most(waits),
      wait.perSecond / waits,
      callers === 256 ? '>= 0.9' : '',
    ]),
  ]
}

function ms(value: number): string {
  return `${value.toFixed(2)} ms`
}
