/**
 * Demonstrates the main use case against a running service (`npm start`): `npm run demo [-- --rounds 5 --callers 8]`
 * creates a project, deploys `examples/admit.ts`, posts every ADT message of `test/data/hl7v2` to its `$execute`, and
 * prints the results.
 */
import { readdir, readFile } from 'node:fs/promises'
import path from 'node:path'
import { parseArgs } from 'node:util'
import type { MedplumClient } from '@medplum/core'
import { SingleBar } from 'cli-progress'
import { readSuperAdminClient, serviceAddress, signIn } from './session.ts'

const root = path.join(import.meta.dirname, '..')

export interface DemoResult {
  readonly messages: number
  readonly runs: number
  /** Acknowledgement code (`AA`, `AE`, …, or `none`) → number of replies. */
  readonly acks: Readonly<Record<string, number>>
  readonly patients: number
  readonly encounters: number
  readonly runsPerSecond: number
  readonly p50Ms: number
  readonly p99Ms: number
}

/** Runs the demo; calls `tick` per response. Throws when a response is not 2xx. */
export async function demo(options: {
  rounds: number
  callers: number
  start?: (total: number) => void
  tick?: () => void
}): Promise<DemoResult> {
  const admin = await signIn(serviceAddress(), await readSuperAdminClient())
  const project = await admin.post('admin/Project/', {
    resourceType: 'Project',
    name: `Demo ${new Date().toISOString()}`,
  })
  const home = `admin/projects/${project.id}`
  const client = await admin.post(`${home}/client`, { name: 'HL7 interface' })
  const bot = await admin.post(`${home}/bot`, { name: 'admit' })
  const caller = await signIn(serviceAddress(), client)
  await admin.post(`fhir/R4/Bot/${bot.id}/$deploy`, {
    filename: 'admit.ts',
    code: await readFile(path.join(root, 'examples', 'admit.ts'), 'utf8'),
  })

  const execute = caller.fhirUrl('Bot', bot.id, '$execute')
  const messages = await readMessages()
  const work = Array.from({ length: options.rounds }, () => messages).flat()
  options.start?.(work.length)
  const acks: Record<string, number> = {}
  const times: number[] = []
  const began = performance.now()
  const callers = Array.from({ length: options.callers }, async () => {
    for (let text = work.pop(); text !== undefined; text = work.pop()) {
      const sent = performance.now()
      const ack: string = await caller.post(execute, text, 'x-application/hl7-v2+er7')
      times.push(performance.now() - sent)
      const code = /[\r\n]MSA\|(\w+)/.exec(ack)?.[1] ?? 'none'
      acks[code] = (acks[code] ?? 0) + 1
      options.tick?.()
    }
  })
  await Promise.all(callers)
  const seconds = (performance.now() - began) / 1000
  times.sort((a, b) => a - b)
  return {
    messages: messages.length,
    runs: times.length,
    acks,
    patients: await count(caller, 'Patient'),
    encounters: await count(caller, 'Encounter'),
    runsPerSecond: times.length / seconds,
    p50Ms: times[Math.floor(times.length * 0.5)] ?? 0,
    p99Ms: times[Math.floor(times.length * 0.99)] ?? 0,
  }
}

async function readMessages(): Promise<string[]> {
  const folder = path.join(root, 'test', 'data', 'hl7v2')
  const names = (await readdir(folder)).filter((name) => /^ADT.*\.hl7$/.test(name)).sort()
  return await Promise.all(names.map((name) => readFile(path.join(folder, name), 'utf8')))
}

async function count(medplum: MedplumClient, type: string): Promise<number> {
  const bundle = await medplum.get(`fhir/R4/${type}?_count=0&_total=accurate`)
  return Number(bundle.total)
}

async function main(): Promise<void> {
  const { values } = parseArgs({
    options: {
      rounds: { type: 'string', default: '5' },
      callers: { type: 'string', default: '8' },
    },
  })
  const bar = process.stdout.isTTY
    ? new SingleBar({ format: '{bar} {value}/{total} messages, {duration_formatted}' })
    : undefined
  const result = await demo({
    rounds: Number(values.rounds),
    callers: Number(values.callers),
    start: (total) => bar?.start(total, 0),
    tick: () => bar?.increment(),
  })
  bar?.stop()
  console.table({
    'messages (files)': result.messages,
    'bot runs': result.runs,
    ACKs: Object.entries(result.acks)
      .map(([code, times]) => `${code} ${times}`)
      .join(', '),
    'Patients stored': result.patients,
    'Encounters stored': result.encounters,
    'runs/s': Math.round(result.runsPerSecond),
    'p50 ms': Number(result.p50Ms.toFixed(1)),
    'p99 ms': Number(result.p99Ms.toFixed(1)),
  })
}

if (import.meta.main) {
  await main().catch((error: Error) => {
    console.error(error.message)
    process.exitCode = 1
  })
}
