/** The extension `bot-tool`: its permitted contents, and the callers who may set it. */
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import { aBot, type Untyped } from '../../fixtures/bots/bots.ts'
import { memberUnder } from '../../fixtures/policy/policy.ts'
import { aTool } from './mcp.ts'

const botica = await openBotica(t)
const { admin } = botica
const id = await aBot(botica)
const { body: bot } = await admin.get<Untyped>(`Bot/${id}`)
const schema = { type: 'object', properties: { a: { type: 'string' } } }

/** The extension of `aTool`, with parts replaced or left out. */
function changed(parts: Record<string, object | undefined>): object[] {
  const [{ url, extension: own }] = aTool('mine', schema).extension as Untyped
  const extension = own.flatMap((part: { url: string }) => {
    const replaced = part.url in parts ? parts[part.url] : part
    return replaced === undefined ? [] : [{ ...replaced, url: part.url }]
  })
  return [
    { url: 'urn:other', valueString: 'x' },
    { url, extension },
  ]
}

t.test('accepts a tool under each prefix of extensions', async (t) => {
  for (const prefix of ['urn:botica:', 'https://any.example/fhir/StructureDefinition/']) {
    const [{ extension }] = aTool('mine', schema).extension as Untyped
    const own = [{ url: `${prefix}bot-tool`, extension }]
    t.equal((await admin.put(`Bot/${id}`, { ...bot, extension: own })).status, 200)
  }
})

t.test('rejects a wrong part of a tool, and names its element', async (t) => {
  const parts = 'Bot.extension[1].extension'
  const json = (value: unknown) => ({ valueString: JSON.stringify(value) })
  const cases: readonly [object[], string, RegExp][] = [
    [changed({ name: undefined }), 'Bot.extension[1]', /must have the extension name/],
    [changed({ description: undefined }), 'Bot.extension[1]', /extension description/],
    [changed({ inputSchema: undefined }), 'Bot.extension[1]', /extension inputSchema/],
    [changed({ name: { valueString: 'my tool' } }), `${parts}[0]`, /1 to 64 letters/],
    [changed({ name: { valueString: 'a'.repeat(65) } }), `${parts}[0]`, /1 to 64 letters/],
    [changed({ name: { valueString: 'graphql' } }), `${parts}[0]`, /a tool of the service/],
    [changed({ name: { valueInteger: 1 } }), `${parts}[0]`, /name must have a valueString/],
    [changed({ description: { valueString: 'x'.repeat(4097) } }), `${parts}[1]`, /at most 4096/],
    [changed({ inputSchema: { valueString: '{' } }), `${parts}[2]`, /JSON Schema of type object/],
    [changed({ inputSchema: json({ type: 'string' }) }), `${parts}[2]`, /of type object/],
    [
      changed({ inputSchema: json({ type: 'object', properties: { a: { $ref: '#' } } }) }),
      `${parts}[2]`,
      /inputSchema: \/properties\/a\/\$ref is not supported; the keywords are/,
    ],
    [
      changed({
        inputSchema: {
          valueString: `{"type":"object","default":${'['.repeat(7000)}${']'.repeat(7000)}}`,
        },
      }),
      `${parts}[2]`,
      /inputSchema is nested deeper than 64 levels/,
    ],
    [
      changed({ inputSchema: json({ type: 'object', title: 'x'.repeat(16_384) }) }),
      `${parts}[2]`,
      /at most 16384 characters/,
    ],
  ]
  for (const [extension, expression, text] of cases) {
    const { status, body } = await admin.put<Untyped>(`Bot/${id}`, { ...bot, extension })
    t.match({ status, ...body.issue?.[0] }, { status: 400, expression: [expression] })
    t.match(body.issue?.[0].details.text, text)
  }
  const [other, tool] = changed({}) as Untyped[]
  const twice = { ...tool, extension: [...tool.extension, tool.extension[0]] }
  const foreign = { ...tool, extension: [...tool.extension, { url: 'color', valueCode: 'red' }] }
  for (const [item, expression] of [
    [twice, `${parts}[3]`],
    [foreign, `${parts}[3].url`],
  ]) {
    const { body } = await admin.put<Untyped>(`Bot/${id}`, { ...bot, extension: [other, item] })
    t.match(body.issue, [{ expression: [expression] }])
  }
})

t.test('lets only administrators and policies that name Bot make a tool', async (t) => {
  const { client } = await memberUnder(botica, { entries: [{ resourceType: '*' }] })
  const mine = { resourceType: 'Bot', name: 'Mine', ...aTool('mine', schema) }
  t.equal((await client.post('Bot', mine)).status, 403)
  const named = await memberUnder(botica, { entries: [{ resourceType: 'Bot' }] })
  t.equal((await named.client.post('Bot', mine)).status, 201)
})
