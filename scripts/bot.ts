/**
 * Runs a bot file here, in the sandbox that the workers use, against a running service:
 * `npm run -s bot -- run file.ts [--input message.hl7] [--project <id>] [--timeout 10]`.
 * The result goes to standard output, log and timings to standard error. It acts as the client of
 * CLIENT_ID and CLIENT_SECRET, else as the super admin's; with `--project` as a client of that project,
 * which is there for the run only.
 */
import { parseArgs, styleText } from 'node:util'
import { readInput, runInSandbox, type SandboxRun } from './bot-sandbox.ts'
import { connect, type Session } from './session.ts'

const USAGE =
  'Usage: npm run -s bot -- run <file> [--input <file>] [--project <id>] [--timeout <seconds>]'

interface Options {
  readonly file: string
  readonly input: string | undefined
  readonly project: string | undefined
  readonly timeout: number
}

async function main(): Promise<void> {
  const { file, input, project, timeout } = readOptions()
  const given = input === undefined ? undefined : await readInput(input)
  const { CLIENT_ID: id, CLIENT_SECRET: secret } = process.env
  const own = await connect(id && secret ? { id, secret } : undefined)
  const run = (session: Session) => runInSandbox(session, file, given, timeout)
  const ran = project === undefined ? await run(own) : await withClient(own, project, run)
  print(ran)
}

function readOptions(): Options {
  const { values, positionals } = parseArgs({
    allowPositionals: true,
    options: {
      input: { type: 'string' },
      project: { type: 'string' },
      timeout: { type: 'string', default: '10' },
    },
  })
  const [command, file, ...more] = positionals
  const timeout = Number(values.timeout)
  if (command !== 'run' || file === undefined || more.length > 0 || !(timeout > 0)) {
    throw new Error(USAGE)
  }
  return { file, input: values.input, project: values.project, timeout }
}

async function withClient<T>(
  admin: Session,
  project: string,
  work: (session: Session) => Promise<T>,
): Promise<T> {
  const made = await admin.post(`admin/projects/${project}/client`, { name: 'Bot on trial' })
  try {
    return await work(await connect({ id: String(made.id), secret: String(made.secret) }))
  } finally {
    const found = await admin.get(`fhir/R4/ProjectMembership?profile=ClientApplication/${made.id}`)
    const entries = found.entry as { resource: { id: string } }[] // a searchset
    for (const { resource } of entries)
      await admin.delete(`fhir/R4/ProjectMembership/${resource.id}`)
    await admin.delete(`fhir/R4/ClientApplication/${made.id}`)
  }
}

function print({ result, requests, requestMs, startMs }: SandboxRun): void {
  const { status, failure, kind, body, log } = result
  const isOk = status === 'ok'
  if (log !== '') console.error(styleText('dim', log.trimEnd(), { stream: process.stderr }))
  const text = isOk ? body : messageOf(body)
  if (isOk && kind !== 'undefined')
    console.log(kind === 'json' || kind === 'outcome' ? pretty(text) : shown(text))
  if (!isOk) console.error(styleText('red', text, { stream: process.stderr }))
  const facts = [
    `${isOk ? 'ok' : failure} in ${result.wallMs.toFixed(1)} ms`,
    `CPU ${result.cpuMs.toFixed(1)} ms`,
    ...(result.memoryMb === undefined ? [] : [`heap ${result.memoryMb.toFixed(1)} MB`]),
    `${requests} ${requests === 1 ? 'request' : 'requests'} in ${requestMs.toFixed(1)} ms`,
    `sandbox ready after ${startMs.toFixed(0)} ms`,
  ]
  const color = isOk ? 'green' : 'red'
  console.error(styleText(color, facts.join(', '), { stream: process.stderr }))
  if (!isOk) process.exitCode = 1
}

/** The segments of an HL7 message end in CR, with which a terminal would write them over each other. */
function shown(text: string): string {
  return process.stdout.isTTY ? text.replaceAll('\r', '\n') : text
}

function pretty(text: string): string {
  return JSON.stringify(JSON.parse(text), undefined, 2)
}

/** The text of the outcome's first issue, else all of it. */
function messageOf(body: string): string {
  const { issue } = JSON.parse(body) as { issue?: { details?: { text?: string } }[] } // of the sandbox
  return issue?.[0]?.details?.text ?? pretty(body)
}

await main().catch((error: Error) => {
  const { outcome } = error as { outcome?: { issue?: { details?: { text?: string } }[] } }
  console.error(outcome?.issue?.[0]?.details?.text ?? error.message)
  process.exitCode = 1
})
