// Uses the page of `filesystem du --html` as somebody without a mouse does, and leaves what there was to hear in an element of its own.
{
  const heard = [];
  const hear = what => {
    const at = document.activeElement;
    heard.push([what, at.id || at.getAttribute('aria-label') || at.textContent]);
  };
  const press = key => {
    document.activeElement.dispatchEvent(new KeyboardEvent('keydown', { key, bubbles: true, cancelable: true }));
    hear(key);
  };
  const enter = () => {
    document.activeElement.click();
    hear('enter');
  };
  document.querySelector('#map button').focus();
  hear('begin');
  for (const key of ['ArrowRight', 'ArrowDown', 'ArrowLeft', 'End', 'Home']) press(key);
  enter();
  press('Escape');
  press('/');
  document.activeElement.value = 'NEEDLE';
  press('Enter');
  heard.push(['where', document.querySelector('#path').textContent]);
  press('Backspace');
  press('/');
  document.activeElement.value = 'nothing has this name';
  press('ArrowDown');
  heard.push(['table', document.querySelector('#caption').textContent]);
  press('Escape');
  document.querySelector('input[value=exclusive]').click();
  heard.push(['exclusive', [...document.querySelectorAll('#map button')].map(it => it.getAttribute('aria-label')).join('; ')]);
  const pre = document.createElement('pre');
  pre.id = 'heard';
  pre.textContent = JSON.stringify(heard);
  document.body.append(pre);
}
