/**
 * Four kinds of bots over HTTP at 1, 16, 64 and 256 callers, each with its bound on this machine: the same requests
 * over REST, the bot's loop in plain Node, or the clock.
 */
import { availableParallelism } from 'node:os'
import { type Figure, type Load, openWire, type Request } from './load.ts'
import type { Stage } from './stage.ts'

const CALLERS = [1, 16, 64, 256]
/** V8 needs some ten thousand runs to reach a steady state. */
const WARM_UP_S = 8
const WAIT_MS = 200
const LOOP = `let x = 0
  for (let i = 0; i < 600_000; i++) x = (x * 31 + i) % 1000003
  return { x }`
const WORK = `const patient = await medplum.readResource('Patient', event.input.id)
  return await medplum.createResource({
    resourceType: 'Basic', code: { text: 'x' }, subject: { reference: 'Patient/' + patient.id } })`
const WAIT = `await new Promise((end) => setTimeout(end, ${WAIT_MS}))
  return event.input`

type Round = Readonly<Record<'read' | 'create' | 'echo' | 'cpu' | 'work' | 'wait', Load>>

export async function bots(stage: Stage, seconds: number): Promise<readonly Figure[]> {
  await stage.start('worker')
  const { token, principal, deploy } = await stage.openProject()
  const [echo, cpu, work, wait] = [
    await deploy('return event.input'),
    await deploy(LOOP),
    await deploy(WORK),
    await deploy(WAIT),
  ]
  const patient = { resourceType: 'Patient' }
  const { id } = await stage.services.repository.create(principal, patient)
  const input = JSON.stringify({ id, text: 'x'.repeat(150) })
  const basic = JSON.stringify({ resourceType: 'Basic', code: { text: 'x' } })

  async function round(callers: number, roundSeconds: number): Promise<Round> {
    const wire = await openWire(stage.baseUrl, callers, token, 'application/json')
    const load = (...request: Request) => wire.load(roundSeconds, () => request)
    try {
      return {
        read: await load('GET', `/fhir/R4/Patient/${id}`),
        create: await load('POST', '/fhir/R4/Basic', basic),
        echo: await load('POST', echo, input),
        cpu: await load('POST', cpu, input),
        work: await load('POST', work, input),
        wait: await load('POST', wait, input),
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
  return figures
}

function timeOfLoop(): number {
  const work = new Function(LOOP)
  for (let i = 0; i < 100; i++) work()
  const began = performance.now()
  for (let i = 0; i < 100; i++) work()
  return (performance.now() - began) / 100
}

function report(callers: number, round: Round, loopMs: number): Figure[] {
  const { read, create, echo, cpu, work, wait } = round
  const rate = ({ perSecond, p99Ms }: Load) => `${Math.round(perSecond)}/s, p99 ${ms(p99Ms)}`
  const most = (perSecond: number) => `${Math.round(perSecond)}/s`
  const loops = Math.min(callers, availableParallelism()) * (1000 / loopMs)
  const waits = Math.min((callers * 1000) / WAIT_MS, echo.perSecond)
  const costs = (load: Load) => load.cpuMs.service
  const line = ({ what, ratio, ...rest }: Omit<Figure, 'ratio'> & { ratio: number }) => ({
    ...rest,
    what: `${what}, ${callers} callers`,
    ratio: ratio.toFixed(2),
  })
  const at = (number: number, bar: string) => (callers === number ? bar : '')
  const apart = costs(read) + costs(create)
  return [
    callers === 1
      ? {
          what: 'echo, 1 caller, p50 above a read',
          ours: ms(echo.p50Ms),
          limit: ms(read.p50Ms),
          ratio: `+${ms(echo.p50Ms - read.p50Ms)}`,
          required: '<= 2 ms',
        }
      : line({
          what: 'echo, CPU to that of a read',
          ours: `${ms(costs(echo))}, ${rate(echo)}`,
          limit: ms(costs(read)),
          ratio: costs(echo) / costs(read),
          required: at(64, '<= 0.5 ms'),
        }),
    line({
      what: 'a loop, to plain Node',
      ours: rate(cpu),
      limit: most(loops),
      ratio: cpu.perSecond / loops,
    }),
    line({
      what: 'read and create, CPU to that over REST',
      ours: `${ms(costs(work))}, ${rate(work)}`,
      limit: ms(apart),
      ratio: costs(work) / apart,
      required: at(64, '<= 1.2 ms'),
    }),
    line({
      what: `a wait of ${WAIT_MS} ms, to the clock or echo`,
      ours: rate(wait),
      limit: most(waits),
      ratio: wait.perSecond / waits,
      required: at(256, '>= 0.9'),
    }),
  ]
}

function ms(value: number): string {
  return `${value.toFixed(2)} ms`
}
