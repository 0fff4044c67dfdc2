/** `/docs` of a service as it starts from a checkout: pages, their links, and missing pages. */
import t from 'tap'
import { openBotica } from '../../fixtures/botica.ts'

const { anonymous, baseUrl } = await openBotica(t)
const HTML = { Accept: 'text/html' }

for (const page of ['/docs/', '/docs/first-hour', '/docs/guides/', '/docs/guides/hl7v2']) {
  t.test(`${page} has only working links`, async (t) => {
    const { status, headers, text } = await anonymous.get(page, HTML)
    t.equal(status, 200)
    t.match(headers.get('content-type'), /^text\/html/)
    const hrefs = [...text.matchAll(/(?:src|href)="([./][^"#]*)/g)].map(([, href = '']) => href)
    const links = new Set(hrefs.map((href) => new URL(href, baseUrl + page.slice(1)).pathname))
    t.ok(links.has('/docs/guides/hl7v2'), 'the menu has the guides')
    for (const link of links) t.equal((await anonymous.get(link, HTML)).status, 200, link)
  })
}

t.test('the page of a folder has an address that its links are relative to', async (t) => {
  for (const folder of ['/docs', '/docs/guides']) {
    const { status, headers } = await anonymous.get(folder, HTML)
    t.equal(status, 302)
    t.equal(headers.get('location'), `${folder}/`)
  }
})

for (const page of ['/docs/none', '/docs/guides/none', '/docs/a/b/c/d/e']) {
  t.test(`${page} is a readable 404`, async (t) => {
    const found = await anonymous.get(page, HTML)
    t.equal(found.status, 404)
    t.match(found.text, /<h1>There is no such page<\/h1>/)
    t.match(found.text, 'href="/docs/"')
    const outcome = await anonymous.get(page, { Accept: 'application/fhir+json' })
    t.match(outcome, { status: 404, body: { resourceType: 'OperationOutcome' } })
  })
}

t.test('the API page keeps its address', async (t) => {
  t.match(await anonymous.get('/docs/api', HTML), { status: 200, text: /swagger-ui/ })
})
