/** Declarations of a Bot are checked, and a deployment warns about secrets and hosts that the Bot does not name. */
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { aBot, deploy, handler, type Untyped } from '../../fixtures/bots/bots.ts'

const botica = await openBotica(t)
const { admin } = botica
const named = (name: string, valueString: string) => ({
  url: `urn:botica:bot-${name}`,
  valueString,
})
const extensions = (...extension: readonly object[]) => ({ fields: { extension } })

t.test('rejects invalid declarations with their place', async (t) => {
  for (const item of [
    named('host', 'https://example.org/'),
    named('host', ''),
    { url: 'urn:botica:bot-host', valueCode: 'example.org' },
    { url: 'urn:botica:bot-secret', valueInteger: 1 },
  ]) {
    const made = await admin.post<Untyped>('Bot', {
      resourceType: 'Bot',
      name: 'b',
      extension: [named('secret', 'LAB_KEY'), item],
    })
    t.equal(made.status, 400, JSON.stringify(item))
    t.match(made.body.issue[0].expression[0], /^Bot\.extension\[1\]/)
  }
})

t.test('a deployment warns about secrets and hosts that the Bot does not name', async (t) => {
  const code = `const BASE = 'https://api.example.com/v1'
    exports.handler = async (medplum, event) => {
      const { BANK_KEY } = event.secrets
      await fetch(BASE + '/x', { headers: { key: event.secrets.LAB_KEY.valueString } })
      await fetch(\`https://lab.example.org/\${event.input.id}\`)
      return BANK_KEY
    }`
  const limits = extensions(named('secret', 'LAB_KEY'), named('host', 'lab.example.org'))
  const id = await aBot(botica, undefined, limits)
  const warned = await deploy(admin, id, code)
  const texts = warned.body.issue.map((item: Untyped) => item.details.text)
  t.same(texts.slice(1), [
    'index.js: The code uses the secret "BANK_KEY", which the Bot does not name by bot-secret (line 3, column 13)',
    'index.js: The code uses api.example.com, which the Bot does not name by bot-host (line 4, column 13)',
  ])
  const free = await aBot(botica)
  t.equal((await deploy(admin, free, code)).body.issue.length, 1)
})

t.test(
  'a deployment says where it cannot know which secrets and hosts the code uses',
  async (t) => {
    const limits = extensions(named('secret', 'LAB_KEY'), named('host', 'lab.example.org'))
    const id = await aBot(botica, undefined, limits)
    const warningsFor = async (body: string) => {
      const { status, body: answer } = await deploy(admin, id, handler(body))
      t.equal(status, 200)
      return answer.issue.slice(1).map((item: Untyped) => item.details.text)
    }
    const secrets = /computes names of secrets; only its runs show whether the Bot names them/
    const hosts = /fetches a computed address; only its runs show whether the Bot names its host/
    const computed: readonly (readonly [string, RegExp])[] = [
      ['return event.secrets[event.input.name]', secrets],
      ['return Object.values(event.secrets)', secrets],
      ['const { LAB_KEY, ...others } = event.secrets; return others', secrets],
      ['const { secrets } = event; return { ...secrets }', secrets],
      ['const all = event.secrets; return all.BANK_KEY', secrets],
      ['return await fetch(event.input.url)', hosts],
      [`return await fetch(\`https://\${event.input.host}/\`)`, hosts],
      ['const url = new URL(event.input.url); return await globalThis.fetch(url)', hosts],
    ]
    for (const [code, text] of computed) {
      const texts = await warningsFor(code)
      t.equal(texts.length, 1, code)
      t.match(texts[0], text, code)
      t.match(texts[0], /^index\.js: .* \(line 1, column \d+\)$/)
    }
    const known = [
      "return event.secrets.LAB_KEY ?? event.secrets['LAB_KEY']",
      'const { LAB_KEY } = event.secrets; return LAB_KEY',
      'const { secrets } = event; return secrets.LAB_KEY',
      "return await fetch('https://lab.example.org/' + event.input.id)",
      'return new Map([[1, 2]]).get(event.input.key)',
    ]
    for (const code of known) t.same(await warningsFor(code), [], code)
  },
)
