/** How the parts of an import follow each other in a worker that nobody reminds of them. */
import { randomUUID } from 'node:crypto'
import { createServer, type ServerResponse } from 'node:http'
import t from 'tap'
import { startImports } from '../worker/imports/run.ts'
import { openBotica, until } from './fixtures/botica.ts'
import { ended } from './fixtures/exports.ts'
import { listen } from './fixtures/listening.ts'
import { createDatabase } from './fixtures/own-database.ts'
import { aPatient } from './fixtures/resources.ts'

const botica = await openBotica(t, {
  // The parts of imports are in the database, which all files share.
  env: { DATABASE_URL: await createDatabase(t) },
})
const { admin, services } = botica
const NEVER_MS = 3_600_000
const DONE_MS = 30_000

/** Kicks off an import of one Patient from each path of a server. */
async function begin(port: number, paths: readonly string[]): Promise<string> {
  const parameter = paths.map((path) => ({
    name: 'input',
    part: [
      { name: 'type', valueCode: 'Patient' },
      { name: 'url', valueUrl: `http://127.0.0.1:${port}/${path}` },
    ],
  }))
  const accepted = await admin.post('$import', { resourceType: 'Parameters', parameter })
  t.equal(accepted.status, 202, accepted.text)
  return accepted.headers.get('content-location') ?? ''
}

t.test('two parts are under way at a time, and the next one as soon as one ends', async (t) => {
  const asked: { readonly path: string; readonly res: ServerResponse }[] = []
  const server = createServer(({ url: path = '' }, res) => void asked.push({ path, res }))
  const port = await listen(t, server)
  const give = (res: ServerResponse | undefined) =>
    res?.end(JSON.stringify({ ...aPatient(), id: randomUUID() }))
  const imports = startImports(services, NEVER_MS)
  t.teardown(() => imports.stop())
  const url = await begin(port, ['first', 'second', 'third'])

  const drained = imports.drain()
  await until(async () => asked.length === 2, DONE_MS)
  t.same(asked.map(({ path }) => path).sort(), ['/first', '/second'])
  // The other one is still waited for.
  give(asked[1]?.res)
  await until(async () => asked.length === 3, DONE_MS)
  t.equal(asked[2]?.path, '/third')
  give(asked[0]?.res)
  give(asked[2]?.res)
  await drained

  const { body } = await ended(admin, url)
  t.match(body, { output: [{ created: 1 }, { created: 1 }, { created: 1 }], error: [] })
})
