/**
 * Demonstrates the main use case against a running service (`npm start`): `npm run demo [-- --rounds 5 --callers 8]`
 * creates a project, deploys `examples/admit.ts`, posts every ADT message of `test/data/hl7v2` to its `$execute`, and
 * prints the results.
 */
import { globSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { parseArgs } from 'node:util'
import { SingleBar } from 'cli-progress'
import { readSuperAdminClient, serviceAddress, signIn } from './session.ts'

const ROOT = path.join(import.meta.dirname, '..')

/** Throws when a response is not 2xx. */
async function demo(rounds: number, callers: number) {
  const admin = await signIn(serviceAddress(), readSuperAdminClient())
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
    code: readFileSync(path.join(ROOT, 'examples/admit.ts'), 'utf8'),
  })

  const files = globSync('test/data/hl7v2/ADT*.hl7', { cwd: ROOT }).sort()
  const messages = files.map((file) => readFileSync(path.join(ROOT, file), 'utf8'))
  const work = Array.from({ length: rounds }, () => messages).flat()
  const bar = process.stdout.isTTY
    ? new SingleBar({ format: '{bar} {value}/{total} messages, {duration_formatted}' })
    : undefined
  bar?.start(work.length, 0)
  const execute = caller.fhirUrl('Bot', bot.id, '$execute')
  const acks = new Map<string, number>()
  const times: number[] = []
  const began = performance.now()
  const call = async () => {
    for (let text = work.pop(); text !== undefined; text = work.pop()) {
      const sent = performance.now()
      const ack: string = await caller.post(execute, text, 'x-application/hl7-v2+er7')
      times.push(performance.now() - sent)
      const code = /[\r\n]MSA\|(\w+)/.exec(ack)?.[1] ?? 'none'
      acks.set(code, (acks.get(code) ?? 0) + 1)
      bar?.increment()
    }
  }
  await Promise.all(Array.from({ length: callers }, call))
  const seconds = (performance.now() - began) / 1000
  bar?.stop()
  times.sort((a, b) => a - b)
  const part = (share: number) => Number(times[Math.floor(times.length * share)]?.toFixed(1))
  const count = async (type: string): Promise<number> =>
    (await caller.get(`fhir/R4/${type}?_count=0&_total=accurate`)).total
  return {
    'messages (files)': messages.length,
    'bot runs': times.length,
    ACKs: [...acks].map(([code, number]) => `${code} ${number}`).join(', '),
    'Patients stored': await count('Patient'),
    'Encounters stored': await count('Encounter'),
    'runs/s': Math.round(times.length / seconds),
    'p50 ms': part(0.5),
    'p99 ms': part(0.99),
  }
}

const { values } = parseArgs({
  options: {
    rounds: { type: 'string', default: '5' },
    callers: { type: 'string', default: '8' },
  },
})
try {
  console.table(await demo(Number(values.rounds), Number(values.callers)))
} catch (error) {
  console.error(error instanceof Error ? error.message : error)
  process.exitCode = 1
}
