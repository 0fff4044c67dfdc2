/** Measures what others lose while a worker exports. */
import type { Figure } from '../bench.ts'
import { connect } from '../session.ts'
import { ask, manifestOf } from './export-job.ts'
import { measure, median, openWire } from './load.ts'
import { openProject } from './project.ts'
import type { Stage } from './stage.ts'

/** Each of them takes four times the seconds of a round. */
const NEIGHBOUR_ROUNDS = 2
const READERS = 4

/** Reads of another Project, and runs of its bot, a second. */
export async function neighbour(
  stage: Stage,
  baseUrl: string,
  exporter: string,
  seconds: number,
): Promise<Figure> {
  const { token } = await openProject(stage, baseUrl)
  const made = await ask(baseUrl, token, 'Patient', {
    method: 'POST',
    headers: { 'Content-Type': 'application/fhir+json' },
    body: JSON.stringify({ resourceType: 'Patient' }),
  })
  const { id } = (await made.json()) as { id: string }
  const bot = await deployBot()
  const wire = await openWire(baseUrl, READERS, token, 'application/fhir+json')
  const botWire = await openWire(baseUrl, READERS, bot.token, 'text/plain')
  const reads = () =>
    measure(READERS, seconds, async (caller) => {
      const { status } = await wire.send(caller, 'GET', `/fhir/R4/Patient/${id}`, '')
      return status === 200
    })
  const runs = () =>
    measure(READERS, seconds, async (caller) => {
      const path = `/fhir/R4/Bot/${bot.id}/$execute`
      return (await botWire.send(caller, 'POST', path, 'x')).status === 200
    })
  const rounds: { read: number; run: number; readBeside: number; runBeside: number }[] = []
  for (let round = 0; round <= NEIGHBOUR_ROUNDS; round++) {
    const alone = { read: (await reads()).perSecond, run: (await runs()).perSecond }
    const stop = keepExporting(baseUrl, exporter)
    const beside = { readBeside: (await reads()).perSecond, runBeside: (await runs()).perSecond }
    await stop()
    if (round > 0) rounds.push({ ...alone, ...beside })
  }
  wire.close()
  botWire.close()
  const of = (name: keyof (typeof rounds)[number]) =>
    Math.round(median(rounds.map((round) => round[name])))
  const lost = (beside: 'readBeside' | 'runBeside', alone: 'read' | 'run') =>
    median(rounds.map((round) => round[beside] / round[alone])).toFixed(2)
  return {
    what: 'reads and bot runs of another project during an export',
    ours: `${of('readBeside')} reads/s, ${of('runBeside')} runs/s`,
    limit: `${of('read')} reads/s, ${of('run')} runs/s`,
    ratio: `${lost('readBeside', 'read')}, ${lost('runBeside', 'run')}`,
    required: '>= 0.7',
  }
}

/** One export after the other; answers what ends it. */
function keepExporting(baseUrl: string, token: string): () => Promise<void> {
  let isOver = false
  const loop = async () => {
    while (!isOver) await manifestOf(baseUrl, token, '$export')
  }
  const running = loop()
  return async () => {
    isOver = true
    await running
  }
}

async function deployBot(): Promise<{ readonly id: string; readonly token: string }> {
  const admin = await connect()
  const project = await admin.post('admin/Project/', { resourceType: 'Project', name: 'Bots' })
  const home = `admin/projects/${project.id}`
  const client = await admin.post(`${home}/client`, { name: 'Caller' })
  const { token } = await connect({ id: String(client.id), secret: String(client.secret) })
  const bot = await admin.post(`${home}/bot`, { name: 'Beside an export' })
  const code = 'exports.handler = async (medplum, event) => event.input'
  await admin.post(`fhir/R4/Bot/${bot.id}/$deploy`, { code, filename: 'beside.js' })
  return { id: String(bot.id), token }
}
