/** An independent linter accepts the OpenAPI document. */
import { execFile } from 'node:child_process'
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'

const ROOT = join(import.meta.dirname, '../../..')
const folder = mkdtempSync(join(tmpdir(), 'botica-openapi-'))
t.teardown(() => rmSync(folder, { recursive: true, force: true }))
const { anonymous } = await openBotica(t)

t.test('has no errors in the OpenAPI document', async (t) => {
  const file = join(folder, 'openapi.json')
  writeFileSync(file, (await anonymous.get('/openapi.json')).text)
  const args = ['lint', file, '--extends=minimal', '--format=json']
  const env = { ...process.env, NODE_OPTIONS: '', REDOCLY_TELEMETRY: 'off' }
  const command = join(ROOT, 'node_modules/.bin/redocly')
  const ran = await new Promise<{ code: number; output: string }>((resolve) => {
    execFile(command, args, { env, maxBuffer: 1 << 26 }, (error, stdout, stderr) => {
      resolve({ code: error === null ? 0 : 1, output: stdout + stderr })
    })
  })
  t.equal(ran.code, 0, ran.output.slice(0, 2000))
})
