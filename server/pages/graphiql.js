/** GraphiQL for the person who has just signed in. The token is kept by this page alone and ends with it. */

export async function openGraphiql(code, verifier) {
  const token = await redeem(code, verifier)
  await Promise.all([load('react'), style()])
  await load('react-dom')
  await load('graphiql')
  const { React, ReactDOM, GraphiQL } = window
  document.querySelector('link[href="/pages/style.css"]').remove()
  const root = document.createElement('div')
  // GraphiQL takes the height of what holds it.
  root.style.height = '100vh'
  document.body.style.margin = '0'
  document.body.replaceChildren(root)
  document.title = document.title.replace(/^.* – /, 'GraphiQL – ')
  const options = {
    fetcher: (query) => ask(token, query),
    // Queries may name patients: they are forgotten with the tab.
    storage: sessionStorage,
    defaultQuery: '{\n  PatientList(_count: 5) {\n    id\n    name {\n      family\n      given\n    }\n  }\n}\n',
  }
  ReactDOM.createRoot(root).render(React.createElement(GraphiQL, options))
}

async function redeem(code, verifier) {
  const body = new URLSearchParams({
    grant_type: 'authorization_code',
    code,
    code_verifier: verifier,
  })
  const response = await fetch('/oauth2/token', { method: 'POST', body })
  const answer = await response.json()
  if (!response.ok) throw new Error(answer.error_description ?? 'Something went wrong')
  return answer.access_token
}

async function ask(token, query) {
  const response = await fetch('/fhir/R4/$graphql', {
    method: 'POST',
    headers: {
      Authorization: `Bearer ${token}`,
      'Content-Type': 'application/json',
      Accept: 'application/graphql-response+json',
    },
    body: JSON.stringify(query),
  })
  return await response.json()
}

function load(name) {
  return added('script', { src: `/graphiql/${name}.js` })
}

function style() {
  return added('link', { rel: 'stylesheet', href: '/graphiql/graphiql.css' })
}

function added(tag, attributes) {
  return new Promise((resolve, reject) => {
    const element = Object.assign(document.createElement(tag), attributes)
    element.onload = resolve
    element.onerror = () => reject(new Error('GraphiQL could not be loaded'))
    document.head.append(element)
  })
}
