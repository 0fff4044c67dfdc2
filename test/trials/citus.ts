/**
 * The trial shows which of our statements a database takes that is distributed by Project; docs/scale.md has the figures.
 *
 * `DATABASE_URL=… node test/trials/citus.ts s.json` sends each shape of statement that is in the log of another
 * PostgreSQL (`log_destination = jsonlog`, `log_statement = all`), on which tests were run; a table `pg_dist_partition`
 * in its databases has the service speak there as it does to Citus. Nothing is kept.
 */
import { createReadStream } from 'node:fs'
import { createInterface } from 'node:readline'
import { setTimeout as delay } from 'node:timers/promises'
import { Client } from 'pg'

const SAMPLES = 3
const TRIES = 60
const RESTART_MS = 500
/** Conditions of a planner that refuses; others come of data that is not there. */
const REFUSED = new Set(['0A000', 'XX000'])

interface Shape {
  readonly samples: { readonly text: string; readonly values: readonly unknown[] }[]
  count: number
}

const say = (text: string) => process.stdout.write(`${text}\n`)

async function connect(): Promise<Client> {
  for (let n = 0; ; n++) {
    const client = new Client({ connectionString: process.env.DATABASE_URL })
    client.on('error', () => undefined)
    try {
      await client.connect()
      await client.query("set statement_timeout = '10s'")
      return client
    } catch (error) {
      if (n > TRIES) throw error
      await delay(RESTART_MS)
    }
  }
}

/** Undefined where the log has cut a value off. */
function parseValues(detail = ''): readonly unknown[] | undefined {
  const found: unknown[] = []
  for (const [, n, , text, cut] of detail.matchAll(/\$(\d+) = (NULL|'((?:[^']|'')*)'(\.\.\.)?)/g)) {
    if (cut) return undefined
    found[Number(n) - 1] = text === undefined ? null : text.replaceAll("''", "'")
  }
  return found
}

const toShape = (text: string) =>
  text
    .replace(/\s+/g, ' ')
    .replace(/'(?:[^']|'')*'/g, "'…'")
    .replace(/\b\d{3,}\b/g, 'N')
    .trim()

async function readShapes(file: string): Promise<ReadonlyMap<string, Shape>> {
  const shapes = new Map<string, Shape>()
  for await (const line of createInterface({ input: createReadStream(file) })) {
    const { message = '', detail, error_severity: kind } = JSON.parse(line)
    const [, text = ''] = /^(?:execute [^:]*|statement): (.*)$/s.exec(message) ?? []
    const isOurs = /^\s*(with|select|insert|update|delete)\b/i.test(text)
    const values = parseValues(detail)
    if (kind !== 'LOG' || !isOurs || /pg_|knex_/.test(text) || values === undefined) continue
    const key = toShape(text)
    const shape = shapes.get(key) ?? { samples: [], count: 0 }
    shape.count += 1
    if (shape.samples.length < SAMPLES) shape.samples.push({ text, values })
    shapes.set(key, shape)
  }
  return shapes
}

/** The sentence that refuses the shape; undefined where it is taken. */
async function refusal(client: Client, { samples }: Shape): Promise<string | undefined> {
  let refused: string | undefined
  for (const { text, values } of samples) {
    await client.query('begin')
    try {
      await client.query(text, [...values])
      refused = undefined
    } catch (error) {
      const { code, message } = error as { code?: string; message: string } // of pg
      if (code === undefined) return 'the server crashes'
      if (REFUSED.has(code)) refused = message
    }
    await client.query('rollback')
    if (refused === undefined) return undefined
  }
  return refused
}

async function replay(file: string): Promise<void> {
  const shapes = await readShapes(file)
  let client = await connect()
  const refused = new Map<string, string[]>()
  for (const [key, shape] of shapes) {
    const reason = await refusal(client, shape)
    if (reason === undefined) continue
    if (reason === 'the server crashes') client = await connect()
    refused.set(reason, [...(refused.get(reason) ?? []), `${shape.count} × ${key.slice(0, 160)}`])
  }
  await client.end()
  const count = [...refused.values()].flat().length
  say(`${shapes.size} shapes, ${shapes.size - count} taken, ${count} refused`)
  for (const [reason, keys] of [...refused].sort(([, a], [, b]) => b.length - a.length)) {
    say(`\n${keys.length}: ${reason}\n  ${keys.join('\n  ')}`)
  }
}

const [, , file = ''] = process.argv
await replay(file)
