import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'
import type { Resource } from '../../fixtures/fhir.ts'

const botica = await openBotica(t)
const { admin } = botica

const url = 'https://example.org/findings'
const map = 'https://example.org/maps/findings'
const parameters = (...parameter: object[]) => ({ resourceType: 'Parameters', parameter })
const system = { name: 'system', valueUri: url }
const concept = (code: string, display: string) => ({
  name: 'concept',
  valueCoding: { code, display },
})
const property = (code: string, name: string, value: string) => ({
  name: 'property',
  part: [
    { name: 'code', valueCode: code },
    { name: 'property', valueCode: name },
    { name: 'value', valueString: value },
  ],
})

const { id } = await admin.create({
  resourceType: 'CodeSystem',
  url,
  status: 'active',
  content: 'not-present',
  hierarchyMeaning: 'is-a',
  property: [{ code: 'site', type: 'string' }],
})

interface Expansion extends Resource {
  readonly expansion: {
    readonly total?: number
    readonly contains?: readonly { code: string; display?: string }[]
  }
}

async function expandCodes(include: object, query = ''): Promise<readonly string[]> {
  const answer = await admin.post<Expansion>(`ValueSet/$expand?${query}`, {
    resourceType: 'ValueSet',
    status: 'active',
    compose: { include: [{ system: url, ...include }] },
  })
  t.equal(answer.status, 200, answer.text.slice(0, 200))
  return (answer.body.expansion.contains ?? []).map(({ code }) => code)
}

const filter = (property: string, op: string, value: string) => ({
  filter: [{ property, op, value }],
})

t.test('concepts are imported with their hierarchy and found by it', async (t) => {
  const made = await admin.post(
    'CodeSystem/$import',
    parameters(
      system,
      concept('1', 'Finding'),
      concept('2', 'Heart finding'),
      concept('3', 'Rapid heart rate'),
      concept('4', 'Lung finding'),
      property('2', 'parent', '1'),
      property('2', 'child', '3'),
      property('4', 'parent', '1'),
      property('1', 'parent', '3'),
      property('4', 'site', 'lung'),
      property('4', 'status', 'retired'),
    ),
  )
  t.match(made, { status: 200, body: { resourceType: 'CodeSystem', id } })

  t.same(await expandCodes({}), ['1', '2', '3', '4'])
  t.same(await expandCodes(filter('site', '=', 'lung')), ['4'])
  t.same(await expandCodes(filter('concept', 'is-a', '4')), ['4'])
  t.same(await expandCodes(filter('concept', 'descendent-of', '2')), ['1', '3', '4'], 'in a circle')
  t.same(await expandCodes(filter('display', 'regex', '.*heart.*'), 'filter=rap'), ['3'])
  t.same(await expandCodes({}, 'filter=heart'), ['2', '3'])
  t.same(await expandCodes(filter('concept', 'is-a', '1'), 'filter=fin%20lu'), ['4'])
  t.same(await expandCodes({}, 'activeOnly=true'), ['1', '2', '3'])
  t.same(await expandCodes({}, 'offset=1&count=2'), ['2', '3'])
  const found = await admin.get(`CodeSystem/$lookup?system=${url}&code=4`)
  t.match(found.text, '"valueString":"lung"')
  const valid = await admin.get(`CodeSystem/${id}/$validate-code?code=3`)
  t.match(valid.body, { parameter: [{ valueBoolean: true }, { valueString: 'Rapid heart rate' }] })
})

t.test('a concept sent again has its new display', async (t) => {
  await admin.post(`CodeSystem/${id}/$import`, parameters(concept('3', 'Tachycardia')))
  t.same(await expandCodes({}, 'filter=tachy'), ['3'])
  t.same(await expandCodes({}, 'filter=rapid'), [])
})

t.test('a concept sent again has its new status', async (t) => {
  const send = (name: string, value: string) =>
    admin.post(`CodeSystem/${id}/$import`, parameters(property('4', name, value)))
  const active = () => expandCodes({}, 'activeOnly=true')
  await send('status', 'active')
  t.same(await active(), ['1', '2', '3', '4'])
  await send('inactive', 'true')
  t.same(await active(), ['1', '2', '3'])
  await send('inactive', 'false')
  t.same(await active(), ['1', '2', '3', '4'])
  await send('status', 'retired')
  t.same(await active(), ['1', '2', '3'])
  t.same(await expandCodes(filter('site', '=', 'lung')), ['4'], 'keeps other properties')
})

t.test('finds imported codes in any case where the CodeSystem ignores case', async (t) => {
  const loose = 'https://example.org/loose'
  const base = { resourceType: 'CodeSystem', status: 'active', content: 'not-present' }
  await admin.create({ ...base, url: loose, caseSensitive: false } as Resource)
  const input = parameters({ name: 'system', valueUri: loose }, concept('E11.9', 'Diabetes'))
  t.equal((await admin.post('CodeSystem/$import', input)).status, 200)
  for (const [query, found] of [
    [`$validate-code?url=${loose}&code=e11.9`, true],
    [`$validate-code?url=${loose}&code=E11.9`, true],
    [`$validate-code?url=${loose}&code=e11`, false],
    [`$validate-code?url=${url}&code=2`, true],
  ] as const) {
    const { body } = await admin.get(`CodeSystem/${query}`)
    t.match(body, { parameter: [{ name: 'result', valueBoolean: found }] }, query)
  }
  const looked = await admin.get(`CodeSystem/$lookup?system=${loose}&code=e11.9`)
  t.match(looked.text, '"valueString":"Diabetes"')
  const { body } = await admin.post<Expansion>('ValueSet/$expand', {
    resourceType: 'ValueSet',
    status: 'active',
    compose: { include: [{ system: loose, concept: [{ code: 'e11.9' }] }] },
  })
  t.match(body.expansion.contains, [{ display: 'Diabetes' }])
})

t.test('other names of a concept are found by their language and use', async (t) => {
  const designation = (code: string, value: string, more: object[] = []) => ({
    name: 'designation',
    part: [{ name: 'code', valueCode: code }, { name: 'value', valueString: value }, ...more],
  })
  const language = (valueCode: string) => ({ name: 'language', valueCode })
  const use = { system: 'urn:use', code: 'short', display: 'Short name' }
  const body = parameters(
    system,
    concept('5', 'Arm finding'),
    designation('5', 'Befund am Arm', [language('de')]),
    designation('5', 'Arm', [{ name: 'use', valueCoding: use }]),
    designation('5', 'Arms'),
  )
  for (const again of [false, true]) {
    t.equal((await admin.post('CodeSystem/$import', body)).status, 200, `again: ${again}`)
  }
  const german = 'displayLanguage=de'
  const include = { concept: [{ code: '4' }, { code: '5' }] }
  const expanded = async (query: string) => {
    const valueSet = {
      resourceType: 'ValueSet',
      status: 'active',
      compose: { include: [{ system: url, ...include }] },
    }
    const { body } = await admin.post<Expansion>(`ValueSet/$expand?${query}`, valueSet)
    return body.expansion.contains
  }
  const names = [
    { language: 'de', value: 'Befund am Arm' },
    { use, value: 'Arm' },
    { value: 'Arms' },
  ]
  const shown = { system: url, code: '5', display: 'Arm finding', designation: names }
  const other = { system: url, code: '4', inactive: true, display: 'Lung finding' }
  t.same(await expanded('includeDesignations=true'), [other, shown])
  t.match(await expanded(german), [{ display: 'Lung finding' }, { display: 'Befund am Arm' }])

  const looked = await admin.get(`CodeSystem/$lookup?system=${url}&code=5&${german}`)
  t.match(looked.text, '"valueString":"Befund am Arm"')
  t.match(looked.text, '{"name":"use","valueCoding":{"system":"urn:use","code":"short"')
  for (const [display, result] of [
    ['Arms', true],
    ['Befund am Arm', true],
    ['Bein', false],
  ] as const) {
    const path = `CodeSystem/${id}/$validate-code?code=5&display=${encodeURIComponent(display)}`
    const { body } = await admin.get<{ parameter: { valueBoolean: boolean }[] }>(path)
    t.equal(body.parameter[0]?.valueBoolean, result, display)
  }

  for (const [part, message] of [
    [[{ name: 'code', valueCode: '5' }], /Missing required parameter \\?"value/],
    [[{ name: 'value', valueString: 'x' }], /Missing required parameter \\?"code/],
    [designation('5', 'x'.repeat(501)).part, /may have 500 bytes/],
    [
      designation('5', 'x', [{ name: 'use', valueCoding: { ...use, version: '1' } }]).part,
      /use.version/,
    ],
    [designation('5', 'x', [{ name: 'use', valueCoding: { code: 1 } }]).part, /use.code/],
  ] as const) {
    const answer = await admin.post(
      'CodeSystem/$import',
      parameters(system, { name: 'designation', part }),
    )
    t.match(answer, { status: 400, text: message })
  }
})

t.test('rejects an import as a whole', async (t) => {
  const many = (count: number) =>
    Array.from({ length: count }, (_, i) => concept(`m${i}`, `Many ${i}`))
  const wrong: [body: object, why: string][] = [
    [parameters(concept('9', 'x')), 'no system'],
    [parameters({ name: 'system', valueUri: 'urn:none' }, concept('9', 'x')), 'an unknown system'],
    [parameters(system, concept('9', 'x'), property('9', 'colour', 'red')), 'an unknown property'],
    [parameters(system, concept('9', 'x'), concept('x'.repeat(501), 'x')), 'a long code'],
    [parameters(system, concept('9', 'x'), { name: 'concept', valueCoding: {} }), 'no code'],
    [
      parameters(system, { name: 'concept', valueCoding: { system: 'urn:x', code: '9' } }),
      'foreign',
    ],
    [
      parameters(system, { name: 'concept', valueCoding: { version: '2', code: '9' } }),
      'a version',
    ],
    [parameters(system, ...many(10_001)), 'too many rows'],
  ]
  for (const [body, why] of wrong) {
    t.equal((await admin.post('CodeSystem/$import', body)).status, 400, why)
  }
  t.notOk((await expandCodes({})).some((code) => code === '9' || code.startsWith('m')))

  const most = await admin.post('CodeSystem/$import', parameters(system, ...many(9_999)))
  t.equal(most.status, 200)
  const page = await admin.get<Expansion>(`ValueSet/$expand?url=${url}?fhir_vs%26&count=3`)
  t.equal(page.status, 404)
  const cut = await admin.get<Expansion>(
    `ValueSet/$expand?url=${encodeURIComponent(`${url}?fhir_vs`)}&count=3`,
  )
  t.match(cut.body.expansion, { total: undefined, contains: [{ code: '1' }, {}, {}] })
})

t.test('only a project admin imports, and only into its own project', async (t) => {
  const { client } = await botica.createMember()
  const body = parameters(system, concept('8', 'x'))
  t.equal((await client.post('CodeSystem/$import', body)).status, 403)
  const other = await botica.createTenant()
  t.equal((await other.admin.post('CodeSystem/$import', body)).status, 400)
  t.equal((await other.admin.post(`CodeSystem/${id}/$import`, body)).status, 404)
  t.equal((await other.admin.get(`CodeSystem/$lookup?system=${url}&code=1`)).status, 404)
})

t.test('a super administrator imports by url into the Project that has it', async (t) => {
  const far = { name: 'system', valueUri: `${url}/far` }
  const body = parameters(far, concept('9', 'Far'))
  const [one, two] = [await botica.createTenant(), await botica.createTenant()]
  const far1 = {
    resourceType: 'CodeSystem',
    url: `${url}/far`,
    status: 'active',
    content: 'complete',
  }
  await one.admin.create({ ...far1, url: `${url}/far/more` })
  t.equal((await botica.superAdmin.post('CodeSystem/$import', body)).status, 400)
  const made = await one.admin.create(far1)
  t.equal((await admin.post('CodeSystem/$import', body)).status, 400)
  const answer = await botica.superAdmin.post('CodeSystem/$import', body)
  t.match(answer, { status: 200, body: { id: made.id } })
  t.equal((await one.admin.get(`CodeSystem/$lookup?system=${url}/far&code=9`)).status, 200)
  await two.admin.create(far1)
  t.match(await botica.superAdmin.post('CodeSystem/$import', body), {
    status: 400,
    text: 'More than one CodeSystem found',
  })
})

t.test('codes are translated by a map and by the mappings imported into it', async (t) => {
  const conceptMap = await admin.create({
    resourceType: 'ConceptMap',
    url: map,
    status: 'active',
    sourceUri: 'urn:vs:a',
    targetUri: 'urn:vs:b',
    group: [
      {
        source: url,
        target: 'urn:b',
        element: [{ code: '1', target: [{ code: 'B1', equivalence: 'wider' }] }],
      },
    ],
  })
  const mapping = (source: object, target: object) => ({
    name: 'mapping',
    part: [
      { name: 'source', valueCoding: source },
      { name: 'target', valueCoding: target },
      { name: 'equivalence', valueCode: 'equal' },
    ],
  })
  const rows = parameters(
    { name: 'url', valueUri: map },
    mapping({ system: url, code: '2' }, { system: 'urn:b', code: 'B2', display: 'Two' }),
  )
  t.equal((await admin.post('ConceptMap/$import', rows)).status, 200)

  const match = (code: string, equivalence: string, system = 'urn:b') => ({
    parameter: [
      { name: 'result', valueBoolean: true },
      {
        name: 'match',
        part: [{ valueCode: equivalence }, { valueCoding: { system, code } }, { valueUri: map }],
      },
    ],
  })
  const cases: [path: string, found: object][] = [
    [`ConceptMap/$translate?url=${map}&system=${url}&code=1`, match('B1', 'wider')],
    [`ConceptMap/$translate?url=${map}&system=${url}&code=2`, match('B2', 'equal')],
    [`ConceptMap/${conceptMap.id}/$translate?system=${url}&code=1`, match('B1', 'wider')],
    [`ConceptMap/$translate?source=urn:vs:a&code=1`, match('B1', 'wider')],
    [
      `ConceptMap/$translate?url=${map}&system=urn:b&code=B1&reverse=true`,
      match('1', 'narrower', url),
    ],
    [
      `ConceptMap/$translate?url=${map}&system=urn:b&code=B2&reverse=true`,
      match('2', 'equal', url),
    ],
    [
      `ConceptMap/$translate?url=${map}&system=${url}&code=7`,
      { parameter: [{ valueBoolean: false }, { name: 'message' }] },
    ],
    [
      `ConceptMap/$translate?url=${map}&system=${url}&code=1&targetsystem=urn:c`,
      { parameter: [{ valueBoolean: false }] },
    ],
  ]
  for (const [path, found] of cases) {
    const { status, body } = await admin.get(path)
    t.equal(status, 200, path)
    t.match(body, found, path)
  }
  t.equal((await admin.get(`ConceptMap/$translate?url=urn:none&code=1`)).status, 404)
  t.equal((await admin.get(`ConceptMap/$translate?url=${map}`)).status, 400)
  t.match((await admin.get('ConceptMap/$translate?code=1')).body, match('B1', 'wider'))
  const core = 'http://hl7.org/fhir/ConceptMap/cm-address-use-v3'
  const address = await admin.get(`ConceptMap/$translate?url=${core}&code=home`)
  t.match(address.body, { parameter: [{ valueBoolean: true }] })
})

t.test("counts the CodeSystem's own definition of an imported code", async (t) => {
  const own = `${url}/own`
  const concepts = [
    { code: 'tree', property: [{ code: 'notSelectable', valueBoolean: true }] },
    { code: 'leaf' },
  ]
  const resource = { url: own, status: 'active', content: 'fragment', concept: concepts }
  await admin.create({ resourceType: 'CodeSystem', ...resource } as Resource)
  const sent = parameters({ name: 'system', valueUri: own }, concept('tree', 'Tree'))
  t.equal((await admin.post('CodeSystem/$import', sent)).status, 200)
  const all = `ValueSet/$expand?url=${encodeURIComponent(`${own}?fhir_vs`)}`
  for (const [query, expected] of [
    ['', ['tree', 'leaf']],
    ['&excludeNotForUI=true', ['leaf']],
  ] as const) {
    const { body } = await admin.get<Expansion>(`${all}${query}`)
    t.same(
      body.expansion.contains?.map(({ code }) => code),
      expected,
      query,
    )
  }
})
