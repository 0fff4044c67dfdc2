/** Code systems with elements that a policy hides from some callers. */
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import type { Client } from '../../fixtures/client.ts'
import type { Raw } from '../../fixtures/oracle/values.ts'
import { clientUnder } from '../../fixtures/policy/policy.ts'

const botica = await openBotica(t)
const { admin } = botica

const clientWithout = (...hiddenFields: string[]) =>
  clientUnder(botica, { resourceType: 'CodeSystem', hiddenFields })

/** The two elements have the same length in JSON. */
const SHOWN = { display: 'Display 123', definition: 'Defined.' }

async function aCodeSystem(name: string, more: object = {}): Promise<string> {
  const url = `https://example.org/${name}`
  await admin.create({
    resourceType: 'CodeSystem',
    url,
    status: 'active',
    content: 'complete',
    concept: [{ code: 'a', ...SHOWN }],
    ...more,
  } as Raw)
  return url
}

const lookup = (client: Client, url: string) =>
  client.get(`CodeSystem/$lookup?system=${url}&code=a`)

// Texts of this size are parsed once for several requests.
const large = { description: 'x'.repeat(60_000) }

for (const [name, more] of [
  ['small', {}],
  ['large', large],
] as const) {
  t.test(`$lookup hides the definition after an administrator's (${name})`, async (t) => {
    const url = await aCodeSystem(`shown-${name}`, more)
    const client = await clientWithout('concept.definition')
    t.match((await lookup(admin, url)).text, 'Defined.')
    const seen = await lookup(client, url)
    t.match(seen, { status: 200, text: 'Display 123' })
    t.notMatch(seen.text, 'Defined.')
  })

  t.test(`callers who see no concepts hide them from no others (${name})`, async (t) => {
    const url = await aCodeSystem(`hidden-${name}`, more)
    const client = await clientWithout('concept')
    t.equal((await lookup(client, url)).status, 404)
    t.match(await lookup(admin, url), { status: 200, text: 'Defined.' })
  })

  t.test(
    `callers with different hidden elements of one length see their own (${name})`,
    async (t) => {
      const url = await aCodeSystem(`different-${name}`, more)
      const [first, second] = [
        await clientWithout('concept.definition'),
        await clientWithout('concept.display'),
      ]
      t.match((await lookup(first, url)).text, 'Display 123')
      const seen = await lookup(second, url)
      t.match(seen, { status: 200, text: 'Defined.' })
      t.notMatch(seen.text, 'Display 123')
    },
  )
}

t.test('a code system with hidden codes has none', async (t) => {
  const url = await aCodeSystem('no-codes', { caseSensitive: false })
  const client = await clientWithout('concept.code')
  t.equal((await lookup(client, url)).status, 404)
  const all = await client.get<Raw>(`ValueSet/$expand?url=${encodeURIComponent(`${url}?fhir_vs`)}`)
  t.equal(all.body.expansion?.contains, undefined)
  t.ok(all.status < 500, String(all.status))
})

t.test('a value set with hidden codes has none', async (t) => {
  const system = await aCodeSystem('listed')
  const url = `${system}/set`
  const compose = { include: [{ system, concept: [{ code: 'a', display: 'A' }] }] }
  await admin.create({ resourceType: 'ValueSet', url, status: 'active', compose } as Raw)
  const hiddenFields = ['compose.include.concept.code']
  const client = await clientUnder(
    botica,
    { resourceType: 'ValueSet', hiddenFields },
    { resourceType: 'CodeSystem' },
  )
  const valid = `ValueSet/$validate-code?url=${url}&system=${system}&code=a`
  const results = await Promise.all([admin, client].map((one) => one.get<Raw>(valid)))
  t.same(
    results.map(({ body }) => body.parameter[0].valueBoolean),
    [true, false],
  )
  const { status, body } = await client.get<Raw>(`ValueSet/$expand?url=${url}`)
  t.equal(status, 200)
  t.equal(body.expansion.contains, undefined)
})
