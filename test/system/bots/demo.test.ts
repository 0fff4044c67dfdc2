/** The demo of README on a running service, with the real messages. */
import { execFile } from 'node:child_process'
import path from 'node:path'
import { promisify } from 'node:util'
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'

const run = promisify(execFile)
const root = path.join(import.meta.dirname, '../../..')

t.test('acknowledges every ADT message and prints the stored resources', async (t) => {
  const botica = await openBotica(t, { worker: 'process' })

  const { stdout } = await run(
    process.execPath,
    ['scripts/demo.ts', '--rounds', '2', '--callers', '4'],
    { cwd: root, env: { ...process.env, NODE_OPTIONS: '', BASE_URL: botica.baseUrl } },
  )

  const rows = new Map(
    [...stdout.matchAll(/│ (.+?) +│ '?(.+?)'? +│/g)].map(([, name = '', value = '']) => [
      name,
      value,
    ]),
  )
  t.equal(rows.get('messages (files)'), '29')
  t.equal(rows.get('bot runs'), '58')
  t.equal(rows.get('ACKs'), 'AA 58')
  t.ok(Number(rows.get('Patients stored')) >= 5)
  t.ok(Number(rows.get('Encounters stored')) >= 4)
  t.ok(Number(rows.get('runs/s')) > 0)
})

t.test('reports a missing service in one line', async (t) => {
  const failed = await run(process.execPath, ['scripts/demo.ts'], {
    cwd: root,
    env: { ...process.env, NODE_OPTIONS: '', BASE_URL: 'http://127.0.0.1:1/' },
  }).catch((error: { code: number; stderr: string }) => error)

  t.match(failed, { code: 1, stderr: /^No service answers at http:\/\/127\.0\.0\.1:1; .+\n$/ })
})
