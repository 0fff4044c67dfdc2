import t from 'tap'
import { openBotica } from '../fixtures/botica.ts'
import { hasChromium, openPage } from '../fixtures/http/chromium.ts'
import { aPerson, PASSWORD } from '../fixtures/people.ts'
import { aPatient } from '../fixtures/resources.ts'

const botica = await openBotica(t, { env: { GRAPHIQL_ENABLED: 'true' } })
const { services, baseUrl, project, admin } = botica

t.test('the editor is not there unless it is switched on', async (t) => {
  const other = await openBotica(t)
  for (const path of ['graphiql', 'graphiql/graphiql.js']) {
    t.equal((await fetch(`${other.baseUrl}${path}`)).status, 404)
  }
})

t.test('the page and its files come from here, under a strict policy', async (t) => {
  const page = await fetch(`${baseUrl}graphiql`)
  t.equal(page.status, 200)
  const policy = page.headers.get('content-security-policy') ?? ''
  t.match(policy, /default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self';/)
  t.notMatch(policy, /unsafe|\*/)
  t.notMatch(await page.text(), /https?:/)
  for (const file of ['start.js', 'react.js', 'react-dom.js', 'graphiql.js', 'graphiql.css']) {
    const answer = await fetch(`${baseUrl}graphiql/${file}`)
    t.equal(answer.status, 200, file)
    t.match(
      answer.headers.get('content-type'),
      file.endsWith('.css') ? 'text/css' : 'text/javascript',
    )
    await answer.body?.cancel()
  }
  for (const file of ['package.json', '..%2fshell.ts', 'index.html']) {
    t.equal((await fetch(`${baseUrl}graphiql/${file}`)).status, 404, file)
  }
})

t.test('a person signs in, asks and is answered by the rights of that person', async (t) => {
  if (!hasChromium()) return t.pass('there is no chromium here')
  const page = await openPage(t)
  const { email } = await aPerson(services, project)
  const { id } = await admin.create(aPatient())

  await page.goto(`${baseUrl}graphiql`)
  await page.shows(`document.getElementById('email')`)
  await page.type('email', email)
  await page.type('password', PASSWORD)
  await page.press('button')
  await page.shows(`document.querySelector('.graphiql-query-editor .CodeMirror')`)
  t.match(await page.value('document.title'), /^GraphiQL – /)
  await page.press('.graphiql-execute-button')
  const answer = `document.querySelector('.result-window .CodeMirror').CodeMirror.getValue()`
  await page.shows(`${answer}.includes('PatientList')`)
  t.match(JSON.parse(await page.value<string>(answer)), { data: { PatientList: [{ id }] } })
  // Its knowledge of the types comes by introspection.
  await page.press('button[aria-label="Show Documentation Explorer"]')
  await page.shows(`document.querySelector('.graphiql-doc-explorer-content a')`)
  t.match(
    await page.value(`document.querySelector('.graphiql-doc-explorer').innerText`),
    /Mutation/,
  )
  t.same(page.complaints, [])
})
