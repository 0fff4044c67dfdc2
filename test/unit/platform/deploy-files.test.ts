/** Platform files start the processes of the Procfile, with existing settings. */
import { readFileSync } from 'node:fs'
import { join } from 'node:path'
import t, { type Test } from 'tap'
import { nodeArguments } from '../../../scripts/service.ts'
import { describeSettings } from '../../../shared/core/config/config.ts'

const ROOT = join(import.meta.dirname, '../../..')
const read = (file: string) => readFileSync(join(ROOT, file), 'utf8')
const FOREIGN = /^(NODE_ENV|NPM_CONFIG_OMIT|MALLOC_ARENA_MAX|AWS_[A-Z_]+|POSTGRES_[A-Z]+)$/
const settings = describeSettings()

function assertSettings(t: Test, file: string, names: readonly string[]): void {
  t.ok(names.length > 5, `${file} has settings`)
  t.same(
    names.filter((name) => !FOREIGN.test(name) && !settings.has(name)),
    [],
    `${file} uses existing settings`,
  )
}

t.test('starts web in the container as the Procfile does', async (t) => {
  const [, command = '[]'] = /^CMD (\[.*\])$/m.exec(read('Dockerfile')) ?? []
  t.same(JSON.parse(command), ['node', ...nodeArguments('web')])
})

t.test('starts the worker in compose.yaml as the Procfile does', async (t) => {
  const commands = [...read('compose.yaml').matchAll(/^ {4}command: \[(.*)\]$/gm)]
  const worker = ['node', ...nodeArguments('worker')].join(', ')
  t.ok(commands.some(([, command]) => command === worker))
})

t.test('uses existing settings in app.json and compose.yaml', async (t) => {
  const app: { env: Record<string, unknown> } = JSON.parse(read('app.json'))
  assertSettings(t, 'app.json', Object.keys(app.env))
  const names = [...read('compose.yaml').matchAll(/^ {4}([A-Z][A-Z_]+): /gm)]
  assertSettings(
    t,
    'compose.yaml',
    names.map(([, name = '']) => name),
  )
})
